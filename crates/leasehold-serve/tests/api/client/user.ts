// Uses a server through the client that is generated from its description. It must compile without a cast.
//
//   node user.js ADDRESS OPERATOR_TOKEN

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

type Problem = components["schemas"]["Problem"];
type Hold = components["schemas"]["Hold"];
type IsWords<T extends string> = string extends T ? false : true;

// Fields with a known set of words are not any text.
true satisfies IsWords<Problem["type"]>;
true satisfies IsWords<NonNullable<Problem["reason"]>>;
true satisfies IsWords<components["schemas"]["Event"]["type"]>;

const [baseUrl, operatorToken] = process.argv.slice(2);
assert(baseUrl && operatorToken, "usage: node user.js ADDRESS OPERATOR_TOKEN");
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${operatorToken}` } });

class Refused extends Error {
    constructor(readonly problem: Problem) {
        super(explain(problem));
    }
}

/** Says what went wrong. The compiler knows each type of problem. */
function explain(problem: Problem): string {
    switch (problem.type) {
        case "urn:leasehold:held":
            return `held by ${problem.held_by?.holder?.name ?? "another holder"}`;
        case "urn:leasehold:lost":
        case "urn:leasehold:key-spent":
            return `lost: ${problem.reason ?? "for an unknown reason"}`;
        case "urn:leasehold:changed":
            return problem.token == null ? "not held" : `held with token ${problem.token}`;
        default:
            return `${problem.status}: ${problem.detail}`;
    }
}

/** Returns the body of a success. */
function done<T>({ data, error }: { data?: T | undefined; error?: Problem | undefined }): T {
    if (error !== undefined) throw new Refused(error);
    assert(data !== undefined);
    return data;
}

/** Returns the problem of a request that must fail. */
async function refused(request: Promise<{ error?: Problem }>): Promise<Problem> {
    const { error } = await request;
    assert(error !== undefined);
    return error;
}

function requestHold(lock: string) {
    const header = { "Idempotency-Key": randomUUID() };
    return client.POST("/v1/holds", { params: { header }, body: { lock, ttl: "10m", note: "nightly report" } });
}

const release = (ticket: string) => client.POST("/v1/holds/release", { body: { ticket } });

/** Lists all locks below `prefix`, page by page. */
async function* list(prefix: string) {
    let cursor: string | null = null;
    do {
        const query: { prefix: string; limit: number; cursor?: string } = { prefix, limit: 2 };
        if (cursor !== null) query.cursor = cursor;
        const page: components["schemas"]["LockPage"] = done(await client.GET("/v1/locks", { params: { query } }));
        assert(page.locks.length <= 2 && page.unreadable.length === 0);
        yield* page.locks;
        cursor = page.next;
    } while (cursor !== null);
}

/** Reads a lock: at once, or when its `ETag` is no longer `known`. Returns null if there was no change. */
async function read(name: string, known?: string, wait?: string) {
    const { data, error, response } = await client.GET("/v1/locks/{name}", {
        params: {
            path: { name },
            query: wait === undefined ? {} : { wait },
            header: known === undefined ? {} : { "If-None-Match": known },
        },
    });
    if (response.status === 304) return null;
    return { lock: done({ data, error }), tag: response.headers.get("ETag") ?? assert.fail("no ETag") };
}

const names = ["user/a", "user/b", "user/c"];
const holds: Hold[] = [];
for (const name of names) holds.push(done(await requestHold(name)));
const [first, second] = holds;
assert(first && second);

const found: string[] = [];
for await (const { lock, state, token, held_by } of list("user/")) {
    assert(state === "held" && held_by !== null && held_by.token === token);
    assert.equal(held_by.holder?.note, "nightly report");
    found.push(lock);
}
assert.deepEqual(found, names);

const held = await requestHold("user/a");
assert(held.error !== undefined);
assert.match(explain(held.error), /^held by /);
assert(Number(held.response.headers.get("Retry-After")) >= 1);

const renewed = done(await client.POST("/v1/holds/renew", { body: { ticket: first.ticket } }));
assert(renewed.token === first.token && renewed.valid_ms > 0 && renewed.valid_ms <= renewed.ttl_ms);
const tickets = [first.ticket, "no ticket"];
const { results } = done(await client.POST("/v1/holds/renew-all", { body: { tickets } }));
assert.deepEqual(
    results.map((result) => ("type" in result ? result.type : result.lock)),
    ["user/a", "urn:leasehold:invalid"],
);

const before = await read("user/a");
assert(before && before.lock.history.length === 0);
assert.equal(await read("user/a", before.tag), null);
const changed = read("user/a", before.tag, "30s");
assert.equal(done(await release(first.ticket)).before, false);
assert.equal((await changed)?.lock.state, "free");
assert.equal(done(await release(first.ticket)).before, true);

const lost = await refused(client.POST("/v1/holds/renew", { body: { ticket: first.ticket } }));
assert(lost.type === "urn:leasehold:lost" && lost.reason === "ended" && lost.status === 410);

assert(second.token !== null);
const path = { name: "user/b" };
const fence = (token: number) => ({ params: { path, header: { "Leasehold-Token": String(token) } } });
assert.equal((await client.GET("/v1/fence/{name}", fence(second.token))).response.status, 204);
const stale = await refused(client.GET("/v1/fence/{name}", fence(second.token + 1)));
assert.equal(explain(stale), `held with token ${second.token}`);
const evicted = await client.POST("/v1/evict", {
    params: { header: { "If-Match": `"${second.token}"` } },
    body: { lock: "user/b", reason: "it hangs" },
});
assert.equal(done(evicted).token, second.token);
assert.equal((await read("user/b"))?.lock.history[0]?.end, "evicted");
