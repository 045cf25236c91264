// The process of a fake agent. Relays the package's output to the test, and carries out the test's orders.

import { closeSync, writeFileSync, writeSync } from "node:fs";
import { connect } from "node:net";
import { createInterface } from "node:readline";

/** An order of a test. */
export type Order =
  | { readonly write: string }
  /** Write a file, to show that everything before it was written. */
  | { readonly mark: string }
  | { readonly exit: number }
  /** Close the output, but keep running. */
  | { readonly closeOutput: true };

const socket = connect(process.argv[2] ?? "");
process.stdin.pipe(socket);
createInterface({ input: socket }).on("line", (line) => {
  const order = JSON.parse(line) as Order;
  if ("write" in order) writeAll(Buffer.from(order.write, "base64"));
  else if ("mark" in order) writeFileSync(order.mark, "");
  else if ("exit" in order) process.exit(order.exit);
  else closeSync(1);
});
socket.on("close", () => process.exit(0));
socket.on("error", () => process.exit(0));

function writeAll(bytes: Buffer): void {
  let from = 0;
  while (from < bytes.length) {
    try {
      from += writeSync(1, bytes, from);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
    }
  }
}
