// Where the `leasehold` command is.

import { createRequire } from "node:module";

/**
 * The command to start: the option, `LEASEHOLD_COMMAND`, the one that was installed with this package, or the one in
 * `PATH`.
 */
export function locate(option: string | undefined): string {
  return option ?? (process.env["LEASEHOLD_COMMAND"] || packaged() || "leasehold");
}

/** The command of the platform's package, which npm installs as an optional dependency of this one. */
function packaged(): string | null {
  try {
    const name = `@leasehold/${process.platform}-${process.arch}/bin/leasehold`;
    return createRequire(import.meta.url).resolve(name);
  } catch {
    return null;
  }
}
