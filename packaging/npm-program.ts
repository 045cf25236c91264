// ./package runs this program with the npm packages. It holds a lock, and checks that another holder does not get it.

import { LeaseholdError, Locker, type Guard } from "leasehold";

try {
  const locker = new Locker("sqlite:locks.db");
  const token: bigint = await locker.using("deploy/prod", { ttl: "30s", wait: "60s" }, async (signal, guard: Guard) => {
    if (signal.aborted) throw new Error("aborted");
    if ((await locker.tryAcquire("deploy/prod")) !== null) throw new Error("two holders");
    guard.check();
    return guard.token;
  });
  console.log(`held with token ${token}`);
  await locker.close();
} catch (error) {
  if (error instanceof LeaseholdError) console.log(error.message, ...error.help);
  throw error;
}
