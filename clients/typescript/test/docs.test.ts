// Compiles all examples of the documentation, and runs all except those that need a cloud.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { test as always } from "./fake.js";
import { folder, test } from "./real.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../", import.meta.url));
// The folder is within the package, so that examples can import it by name. Several versions of Node may run these
// tests at once.
const examples = join(root, `build/examples-${process.version}`);

/** The functions that the examples call but do not show. */
const CONTEXT = `
declare global {
  function deploy(options: { signal: AbortSignal; fence: bigint }): Promise<void>;
  function rebuild(): Promise<void>;
  function search(): Promise<void>;
  function rows(options: { signal: AbortSignal }): Promise<string[]>;
  function save(row: string, token: bigint): Promise<void>;
  function importAll(event: unknown, options: { signal: AbortSignal; fence: bigint }): Promise<number>;
}
export {};
`;
const FUNCTIONS = `
for (const name of ["deploy", "rebuild", "search", "save"]) globalThis[name] = async () => {};
globalThis.rows = async () => ["a", "b"];
`;

interface Example {
  readonly name: string;
  readonly text: string;
  readonly runs: boolean;
}

/** Returns the \`ts\` blocks of a page, or of the comments in a source file. */
function blocks(name: string, path: string): Example[] {
  const text = readFileSync(path, "utf8").replace(/^ *\* ?/gm, path.endsWith(".ts") ? "" : "$&");
  return [...text.matchAll(/^```ts( no-run)?\n(.*?)^```$/gms)].map(([, flag, body], number) => ({
    name: `${name}-${number + 1}`,
    text: body ?? "",
    runs: flag === undefined,
  }));
}

const found: readonly Example[] = [
  ...blocks("typescript.md", join(root, "../../docs/typescript.md")),
  ...blocks("README.md", join(root, "README.md")),
  ...readdirSync(join(root, "src")).flatMap((file) => blocks(file, join(root, "src", file))),
].map((example) => ({ ...example, name: example.name.replaceAll(".", "-") }));

async function compiled(): Promise<void> {
  rmSync(examples, { recursive: true, force: true });
  mkdirSync(examples, { recursive: true });
  for (const { name, text } of found) writeFileSync(join(examples, `${name}.ts`), text);
  writeFileSync(join(examples, "context.ts"), CONTEXT);
  writeFileSync(join(examples, "functions.mjs"), FUNCTIONS);
  const compilerOptions = {
    rootDir: ".",
    outDir: "js",
    declaration: false,
    noUnusedLocals: false,
    noUnusedParameters: false,
  };
  const config = { extends: "../../tsconfig.json", compilerOptions, include: ["*.ts"] };
  writeFileSync(join(examples, "tsconfig.json"), JSON.stringify(config));
  const { stdout } = await run(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", examples]).catch(
    (error: { stdout: string }) => error,
  );
  assert.equal(stdout, "");
}

const once = compiled();

always("the examples of the documentation compile", async () => {
  assert.ok(found.length >= 10, String(found.length));
  await once;
});

for (const example of found.filter(({ runs }) => runs)) {
  test(`the example ${example.name} runs`, async (t) => {
    await once;
    const options = { cwd: folder(t), timeout: 60_000 };
    const script = `import ${JSON.stringify(join(examples, "functions.mjs"))};
      await import(${JSON.stringify(join(examples, "js", `${example.name}.js`))});
      process.exit(0);`;
    await run(process.execPath, ["--input-type=module", "--eval", script], options);
  });
}
