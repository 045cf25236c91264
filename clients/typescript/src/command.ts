// Where the `leasehold` command is.

import { createRequire } from "node:module";

/** The platforms for which there is a package with the command. `./package` makes them. */
export const PLATFORMS: readonly string[] = ["darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64"];

/** The command as `PATH` has it. */
const ON_PATH = "leasehold";

/**
 * The command to start: the option, `LEASEHOLD_COMMAND`, the one that was installed with this package, or the one in
 * `PATH`.
 */
export function locate(option: string | undefined): string {
  return option ?? (process.env["LEASEHOLD_COMMAND"] || packaged() || ON_PATH);
}

/** The command of the platform's package, which npm installs as an optional dependency of this one. */
function packaged(): string | null {
  try {
    return createRequire(import.meta.url).resolve(`@leasehold/${platform()}/bin/leasehold`);
  } catch {
    return null;
  }
}

/** What to do if the command that was located does not exist. */
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
