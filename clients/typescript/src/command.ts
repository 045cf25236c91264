// Finds the `leasehold` command.

import { createRequire } from "node:module";

/** The platforms that have a package with the command. `./package` builds these packages. */
export const PLATFORMS: readonly string[] = ["darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"];

/** The name of the command in `PATH`. */
const ON_PATH = "leasehold";

/**
 * Returns the command to start: from the option, from `LEASEHOLD_COMMAND`, installed with this package, or in `PATH`.
 */
export function locate(option: string | undefined): string {
  return option ?? (process.env["LEASEHOLD_COMMAND"] || packaged() || ON_PATH);
}

/** Returns the command in the platform's package, which npm installs as an optional dependency of this package. */
function packaged(): string | null {
  try {
    return createRequire(import.meta.url).resolve(`@leasehold/${platform()}/bin/leasehold`);
  } catch {
    return null;
  }
}

/** Returns advice for the case that the located command does not exist. */
export function advice(command: string): readonly string[] {
  const set = "Install the leasehold command, or set LEASEHOLD_COMMAND or the option `command` to its path.";
  if (command !== ON_PATH) return [set];
  return PLATFORMS.includes(platform())
    ? [
        `The package @leasehold/${platform()}, which contains the command, is not installed. npm leaves it out with ` +
          "--omit=optional and on Linux without glibc, and if node_modules was copied from another platform.",
        set,
      ]
    : [`There is no package with the command for ${platform()}.`, set];
}

function platform(): string {
  return `${process.platform}-${process.arch}`;
}
