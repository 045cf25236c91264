// Downloads the command of a release and checks it.

import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { execute } from "./command.mjs";
import { input } from "./runner.mjs";

const TARGETS = {
  "linux-x64": "x86_64-unknown-linux-gnu",
  "linux-arm64": "aarch64-unknown-linux-gnu",
  "darwin-x64": "x86_64-apple-darwin",
  "darwin-arm64": "aarch64-apple-darwin",
};

/** Installs the requested version. Resolves with the folder that contains the command. */
export async function install() {
  const platform = `${process.platform}-${process.arch}`;
  const target = TARGETS[platform];
  if (target === undefined) {
    throw new Error(`there is no release for ${platform}: build leasehold, and set the input command to its path`);
  }
  const version = input("version") || ownVersion();
  if (!/^[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.-]*$/.test(version)) {
    throw new Error(`the version ${JSON.stringify(version)} is not one like 0.1.0`);
  }
  const name = `leasehold-${version}-${target}`;
  const release = `${input("downloads")}/v${version}`;
  const tarball = await download(`${release}/${name}.tar.gz`);
  const sums = (await download(`${release}/SHA256SUMS`)).toString();
  const digest = createHash("sha256").update(tarball).digest("hex");
  if (!sums.split("\n").includes(`${digest}  ${name}.tar.gz`)) {
    throw new Error(`${name}.tar.gz has the SHA-256 digest ${digest}, which SHA256SUMS of the release does not have`);
  }
  const parent = process.env["RUNNER_TEMP"];
  mkdirSync(parent, { recursive: true });
  const folder = mkdtempSync(join(parent, "leasehold-"));
  const file = join(folder, "leasehold.tar.gz");
  writeFileSync(file, tarball);
  const { code } = await execute("tar", ["-xzf", file, "-C", folder]);
  if (code !== 0) throw new Error(`tar cannot unpack ${file}: exit code ${code}`);
  return join(folder, name);
}

/** Returns the version of the client in the same repository, which is also the action's version. */
function ownVersion() {
  return JSON.parse(readFileSync(new URL("../clients/typescript/package.json", import.meta.url), "utf8")).version;
}

async function download(url) {
  let answer;
  try {
    answer = await fetch(url);
  } catch (error) {
    throw new Error(`cannot download ${url}: ${error.cause?.message ?? error.message}`, { cause: error });
  }
  if (!answer.ok) throw new Error(`cannot download ${url}: HTTP status ${answer.status}`);
  return Buffer.from(await answer.arrayBuffer());
}
