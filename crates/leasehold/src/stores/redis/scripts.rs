//! The scripts. The server runs each without interruption. They keep no rule of the lease protocol: they compare the
//! version, recognise a free record and the first waiter, and respect the keys of other clients.
//!
//! A lock has two keys. The first is a string with a time to live, like the one that other clients set. Its value is
//! the grant's id. The second key is a hash, the record. A string of another client excludes leasehold.
//!
//! Without a cluster, a third key is the record of the server, and a fourth the set of the names of all locks.

use redis::Script;

use super::server::LAG_ROUNDING;
use crate::lease::{MAX_WAITERS, Token};
use crate::stores::notifications::CALLED_BY;

/// The fields of the record that a response contains, in this order.
pub(super) const FIELDS: [&str; 10] =
    ["version", "grant", "token", "open", "served", "at", "record", "history", "line", "size"];

/// Reads the clock. Lua's numbers are doubles, which `tostring` rounds to 14 digits, so the scripts format them with
/// `text`.
const CLOCK: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
";

/// The beginning of every script for a record. `KEYS[1]` is the string, `KEYS[2]` the record. In a cluster, these are the
/// only keys.
const BEGIN: &str = r"
local version, grant, last, open, served, at, _, history, line, size = unpack(redis.call('HMGET', KEYS[2], unpack(FIELDS)))
served = tonumber(served) or 0
local kind = redis.call('TYPE', KEYS[1]).ok
local foreign = kind ~= 'none' and not (kind == 'string' and redis.call('GET', KEYS[1]) == grant)
local function answer(outcome, detail, fields)
    return {outcome, text(now), foreign and kind or '', foreign and redis.call('PTTL', KEYS[1]) or -2, detail or '', fields or {}}
end
-- Iterates over the entries of the line that can be read, with the number and the claim of each. Ends early in a line
-- that is too long, which only another program can have written.
local function entries()
    local next_entry, left = string.gmatch(line or '', '[^\n]+'), 2 * MAX_WAITERS
    return function()
        for entry in next_entry do
            local number, claim = string.match(entry, '^(%d+) %d+ (%x+) ')
            number, left = tonumber(number), left - 1
            if left < 0 then return end
            if number and number < MOST then return entry, number, claim end
        end
    end
end
-- Returns the first claim that waits, and its number, if the waiters up to a number were served and a claim was granted.
local function first_of(served, granted)
    for _, number, claim in entries() do
        if number > served and claim ~= granted then return claim, text(number) end
    end
end
local function found(outcome, detail) return answer(outcome, detail, redis.call('HMGET', KEYS[2], unpack(FIELDS))) end
";

/// `identity` returns the server's run, and which server it is since which promotion. `over` also returns the time at
/// which the grace is over. Its `key` is the record of the server.
///
/// After a restart or a promotion, the server grants nothing during the failover grace, because it may have lost grants.
const GRACE: &str = r"
local function identity(replication, server)
    local run = string.match(server, 'run_id:(%x+)') or ''
    return run, run .. ' ' .. (string.match(replication, 'master_replid:(%x+)') or '')
end
local function over(key, grace, replication, server)
    local run, epoch = identity(replication, server)
    local known = redis.call('HMGET', key, 'epoch', 'since', 'grace')
    local since, was_primary = tonumber(known[2]), string.find(replication, 'master_replid2:0+\r')
    grace = math.max(grace, tonumber(known[3]) or 0)
    -- A time ahead of the clock was recorded before the clock was set back.
    if known[1] ~= epoch or not since or since > now or tonumber(known[3]) ~= grace then
        if not known[1] or not since then
            -- The server has no record yet. By default, `was_primary` is false for an hour after a promotion.
            -- The uptime in whole seconds can be up to a second too long.
            local uptime = (tonumber(string.match(server, 'uptime_in_seconds:(-?%d+)')) or 0) - 1
            since = now - (was_primary and math.max(0, math.min(uptime, 3600)) or 0) * 1000000
        elseif since > now or known[1] ~= epoch and not (was_primary and string.sub(known[1], 1, #run) == run) then
            since = now
        end
        redis.call('HSET', key, 'epoch', epoch, 'since', text(since), 'grace', text(grace))
    end
    return epoch, since + grace
end
";

/// For a cluster, where a script cannot access the record of the server together with a lock: asks for it alone.
/// `KEYS[1]` the record of the server. `ARGV`: 1 the failover grace.
const EPOCH: &str = r"
local epoch, ends = over(KEYS[1], tonumber(ARGV[1]), redis.call('INFO', 'replication'), redis.call('INFO', 'server'))
return {epoch, text(ends)}
";

/// Returns the reason why a lock may not be granted or renewed, because of a failover, or nothing. `KEYS[3]` the record
/// of the server. In a cluster, `ARGV[19]` and `ARGV[20]` are what `EPOCH` returned, which is still true if the server is
/// the same.
///
/// A renewal notices a restart or a promotion too, so that the grace passes while locks are held. Not in a cluster, where
/// it cannot access the record of the server.
///
/// A primary that is cut off from its replicas accepts writes until they have lagged for `min-replicas-max-lag`, which
/// may be changed at any time. The failover grace of another primary must be longer than the lag and the lease together.
/// The lag counts 2 s more, because it is in whole seconds, and the server judges it once a second.
const FAILOVER: &str = r"
local function failover(is_grant, grace, lease, most_lag)
    if grace == 0 then return end
    local replication = redis.call('INFO', 'replication')
    -- With replica-read-only no, a replica accepts writes. Another server may grant the lock.
    if string.find(replication, 'role:slave') then return redis.error_reply('READONLY this server is a replica') end
    local lag = math.floor((grace - lease) / 1000000) - LAG_ROUNDING
    local counted, good = tonumber(string.match(replication, 'min_slaves_good_slaves:(%d+)')) or 0, 0
    for seconds in string.gmatch(replication, 'slave%d+:[^\r]*state=online[^\r]*lag=(%d+)') do
        if tonumber(seconds) <= lag then good = good + 1 end
    end
    if good < counted then
        return redis.error_reply('NOREPLICAS a replica has not acknowledged writes for ' .. math.max(0, lag) .. ' s')
    end
    if not is_grant and not KEYS[3] then return end
    -- The replicas may have connected after the client did.
    local replicas = tonumber(string.match(replication, 'connected_slaves:(%d+)')) or 0
    if is_grant and replicas > 0 and lease + most_lag > grace then return answer('outlasts') end
    local server, ends = redis.call('INFO', 'server'), tonumber(ARGV[20])
    if KEYS[3] then
        ends = select(2, over(KEYS[3], grace, replication, server))
    elseif select(2, identity(replication, server)) ~= ARGV[19] then
        return answer('replaced')
    end
    if is_grant and ends > now then return answer('recovering', text(ends - now)) end
end
";

/// Writes a record. `KEYS[4]` the names of the locks. `ARGV`: 1 the version that it replaces, nothing if there is no
/// record, or `*` for any free record that no other claim awaits; 2 `grant`, `renew` or `free`; 3 to 9 the version, the
/// grant, the token (for `*`, how many tokens), whether the record is free, the number of served waiters (for `*`,
/// whether the claim ignores the line), the record, and the history (nothing if unchanged); 10 the time to live of the
/// string in milliseconds; 11 the time from which on a grant or renewal is too late; 12 to 14 the failover grace, the
/// lease, and for how long a primary that is cut off may continue to write, in microseconds; 15 the name; 16 the channel
/// for the first waiter or nothing; 17 for a renewal, the lease that it prolongs; 18 the size or
/// nothing (for `*`, for a record that has none); 19 and 20 for [`FAILOVER`].
///
/// A grant or renewal that arrives after its client gave up is too late. So is a renewal after the lease has lapsed,
/// because another client may have held the lock since. It leaves no trace.
const WRITE: &str = r"
local any, holds, token, number = ARGV[1] == '*', ARGV[2] == 'grant' or ARGV[2] == 'renew', ARGV[5], ARGV[7]
local is_right = (version or '') == ARGV[1]
if any then
    local first, its_number = first_of(served, grant)
    is_right = (not version or open == '1' and grant ~= ARGV[4] and string.find(last or '', '^%d+$')
        and not string.find(history or '', ARGV[4], 1, true)) and (not first or first == ARGV[4] or number == '1')
    number = first == ARGV[4] and its_number or text(served)
    token = math.max((version and tonumber(last) or 0) + tonumber(token), now)
    is_right = is_right and token < MOST
    token = text(token)
end
local has_lapsed = ARGV[17] ~= '' and now >= (tonumber(at) or 0) + tonumber(ARGV[17])
if not is_right or holds and (foreign or has_lapsed or now >= tonumber(ARGV[11])) then return found('refused') end
local refused = holds and failover(ARGV[2] == 'grant', tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14]))
if refused then return refused end
-- First, because a user without the permission must not change the record.
if KEYS[4] and ARGV[2] == 'grant' then redis.call('ZADD', KEYS[4], 0, ARGV[15]) end
redis.call('HSET', KEYS[2], 'version', ARGV[3], 'grant', ARGV[4], 'token', token, 'open', ARGV[6], 'served', number, 'at', text(now), 'record', ARGV[8])
if not any or (size or '') == '' then redis.call('HSET', KEYS[2], 'size', ARGV[18]) end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[2], 'history', ARGV[9]) end
if not foreign then
    if ARGV[10] ~= '0' then redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[10]) elseif kind ~= 'none' then redis.call('DEL', KEYS[1]) end
end
if ARGV[16] ~= '' then
    -- Calls the first waiter. Ignores errors, because the user may lack the permission.
    local first = first_of(tonumber(number), ARGV[4])
    if first then redis.pcall('PUBLISH', ARGV[16], string.sub(first, 1, CALLED_BY)) end
end
foreign = false
if any then return found('done', version and last or '') end
return answer('done')
";

const READ: &str = r"
return found('found')
";

/// Deletes a record, unless a claim waits, or its token is ahead of the clock from which the next one would come.
/// `KEYS[4]` the names of the locks. `ARGV`: 1 its version, 2 the name.
const DISCARD: &str = r"
if version ~= ARGV[1] or first_of(served, grant) or (tonumber(last) or 0) >= now then return answer('refused') end
redis.call('DEL', KEYS[2])
if KEYS[4] then redis.call('ZREM', KEYS[4], ARGV[2]) end
return answer('done')
";

/// Adds a claim to the end of the line. `ARGV`: 1 the claim, 2 the pause of a single waiter and 3 its longest pause, both
/// in milliseconds, 4 the waiter as JSON.
const JOIN: &str = r"
local last, all, is_in = served, {}, grant == ARGV[1]
for entry, number, claim in entries() do
    last = math.max(last, number)
    if number > served and claim ~= grant then
        all[#all + 1] = entry
        is_in = is_in or claim == ARGV[1]
    end
end
if not is_in and #all < MAX_WAITERS then
    local pause = math.min((#all + 1) * tonumber(ARGV[2]), tonumber(ARGV[3]))
    all[#all + 1] = text(last + 1) .. ' ' .. text(pause) .. ' ' .. ARGV[1] .. ' ' .. ARGV[4]
    redis.call('HSET', KEYS[2], 'line', table.concat(all, '\n'))
end
return found('found')
";

/// Removes a claim from the line. `ARGV`: 1 the claim.
const LEAVE: &str = r"
local all, is_in = {}, false
for entry, _, claim in entries() do
    if claim ~= ARGV[1] then all[#all + 1] = entry else is_in = true end
end
if is_in and #all == 0 and not version then
    redis.call('DEL', KEYS[2])
elseif is_in then
    redis.call('HSET', KEYS[2], 'line', table.concat(all, '\n'))
end
return answer('done')
";

/// Returns the names that have a record, and the last name that was read if there may be more. `KEYS[1]` the names of
/// the locks. `ARGV`: 1 where to begin, 2 where to end, 3 how many, 4 the prefix of the keys.
const NAMES: &str = r"
local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local found = {}
for _, name in ipairs(names) do
    if redis.call('EXISTS', ARGV[4] .. name .. '//leasehold') == 1 then found[#found + 1] = name end
end
return {found, #names == tonumber(ARGV[3]) and names[#names] or false}
";

/// The scripts. The client sends their digests, and sends their text only to a server that does not have them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) write: Script,
    pub(super) read: Script,
    pub(super) discard: Script,
    pub(super) join: Script,
    pub(super) leave: Script,
    pub(super) names: Script,
    pub(super) epoch: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            write: of_a_record(&[GRACE, FAILOVER, WRITE]),
            read: of_a_record(&[READ]),
            discard: of_a_record(&[DISCARD]),
            join: of_a_record(&[JOIN]),
            leave: of_a_record(&[LEAVE]),
            names: Script::new(NAMES),
            epoch: Script::new(&[CLOCK, GRACE, EPOCH].concat()),
        }
    }
}

fn of_a_record(parts: &[&str]) -> Script {
    let constants = format!(
        "local FIELDS, MOST, MAX_WAITERS, CALLED_BY, LAG_ROUNDING = {{'{}'}}, {}, {MAX_WAITERS}, {CALLED_BY}, {}",
        FIELDS.join("','"),
        Token::LIMIT,
        LAG_ROUNDING.as_secs(),
    );
    Script::new(&format!("{constants}{CLOCK}{BEGIN}{}", parts.concat()))
}
