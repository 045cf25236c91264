// The end of the job. Releases the lock of the step, even if a later step failed. If the lock was lost, the job fails.

import { execute } from "./command.mjs";
import { fail, savedState } from "./runner.mjs";

try {
  const [ticket, store] = [savedState("ticket"), savedState("store")];
  if (ticket !== "") {
    const env = { LEASEHOLD_TICKET: ticket, ...(store === "" ? {} : { LEASEHOLD_STORE: store }) };
    const { code } = await execute(savedState("command"), ["release"], { env });
    if (code !== 0) throw new Error(`the lock was not held until the end of the job: exit code ${code}`);
  }
} catch (error) {
  fail(error);
}
