// Lines in a stream of bytes.

import { Garbage } from "./message.js";

const NEWLINE = 10;

/** Splits bytes into lines. Bytes may be added while the caller processes a line. */
export class Lines {
  /** The longest line that is accepted, in bytes. */
  limit = 1 << 20;
  /** The bytes that were not returned yet. The first `#searched` pieces contain no newline. */
  #pieces: Uint8Array[] = [];
  #searched = 0;
  #length = 0;
  readonly #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  /** Adds bytes, which must not change afterwards. */
  push(bytes: Uint8Array): void {
    if (bytes.length > 0) this.#pieces.push(bytes);
  }

  /** Returns the next line without its newline, or `null` if none is complete. */
  next(): string | null {
    for (;;) {
      const piece = this.#pieces[this.#searched];
      if (piece === undefined) return null;
      const end = piece.indexOf(NEWLINE);
      this.#length += end < 0 ? piece.length : end;
      if (this.#length > this.limit) throw new Garbage(`a line of more than ${this.limit} bytes`);
      if (end >= 0) return this.#take(piece, end);
      this.#searched += 1;
    }
  }

  #take(last: Uint8Array, end: number): string {
    const rest = last.subarray(end + 1);
    const line = [...this.#pieces.splice(0, this.#searched + 1).slice(0, -1), last.subarray(0, end)];
    if (rest.length > 0) this.#pieces.unshift(rest);
    this.#searched = 0;
    this.#length = 0;
    try {
      return this.#decoder.decode(line.length === 1 ? line[0] : Buffer.concat(line));
    } catch {
      throw new Garbage("a line that is not UTF-8");
    }
  }
}
