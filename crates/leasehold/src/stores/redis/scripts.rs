//! The scripts. Each step of a lock is one script, which the server runs without interruption and by its own clock.
//!
//! A lock has two keys. The first is a string with a time to live, like the one that other clients set. Its value is
//! the grant's id. The second key is a hash, the record. Only the record decides about grants of leasehold. The string
//! excludes other clients, and a string of another client excludes leasehold.

use std::time::Duration;

use redis::Script;

use super::server::LAG_ROUNDING;
use crate::lease::{MAX_WAITERS, Token, grace};
use crate::stores::on_server::notifications::CALLED_BY;

/// How many ended grants a record keeps.
const HISTORY: usize = 8;

/// The beginning of every script for a lock. `KEYS[1]` is the string, `KEYS[2]` the record. Lua's numbers are doubles,
/// which `tostring` rounds to 14 digits, so the scripts format them with `text`.
const BEGIN: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end

local r, fields = {}, redis.call('HGETALL', KEYS[2])
for i = 1, #fields, 2 do r[fields[i]] = fields[i + 1] end
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1])
local foreign = kind ~= 'none' and value ~= r.grant
local until_us = tonumber(r['until']) or 0
local ours = (r.state == 'held' or r.state == 'resting') and until_us > now
local live = foreign or ours
local function is_number(text) return text and string.find(text, '^%d+$') end
-- Whether the record was edited by hand.
local broken = r.grant and not (string.find(r.grant, '^%x+$') and #r.grant == 32 and is_number(r.token) and is_number(r['until']) and is_number(r.from)
    and is_number(r.lease) and (r.holder or '') ~= '' and (r.shown or '') ~= ''
    and (r.state == 'held' or r.state == 'resting' or r.state == 'free'))

local function answer(outcome, left)
    return {outcome, text(now), foreign and kind or '', foreign and redis.call('PTTL', KEYS[1]) or -2,
        left or '0', redis.call('HGETALL', KEYS[2])}
end

local function lines(list, most)
    local all = {}
    for line in string.gmatch(list or '', '[^\n]+') do
        if #all == most then break end
        all[#all + 1] = line
    end
    return all
end

-- Returns the history, with the current grant added at the front. `why` is the JSON of an eviction, or nothing.
local function past(how, at, why)
    local all = {'{\34token\34:' .. r.token .. ',\34grant\34:\34' .. r.grant .. '\34,\34holder\34:' .. r.shown
        .. ',\34from_us\34:' .. r.from .. ',\34until_us\34:' .. text(at) .. ',\34end\34:\34' .. how .. '\34' .. ((why or '') ~= '' and ',\34evicted\34:' .. why or '') .. '}'}
    for _, line in ipairs(lines(r.past)) do
        if #all < HISTORY then all[#all + 1] = line end
    end
    return table.concat(all, '\n')
end

local function set(lease_us)
    redis.call('SET', KEYS[1], r.grant, 'PX', text(math.ceil(lease_us / 1000)))
end

local function was_granted(id) return string.find(r.past or '', '\34grant\34:\34' .. id .. '\34', 1, true) end

-- Further lines, which leasehold does not write, do not count, and the next change of the list removes them.
local waiters = lines(r.waiters, MAX_WAITERS)
local function place_of(id)
    for place, line in ipairs(waiters) do
        if string.sub(line, 1, #id + 1) == id .. ' ' then return place end
    end
end

-- Returns the error for a primary that may be cut off from its replicas, or nothing. Such a primary accepts writes until
-- they have lagged for `min-replicas-max-lag`, which may be changed at any time. The failover grace of another primary
-- must be longer than the lag and the lease together. The lag counts 2 s more, because it is in whole seconds, and the
-- server judges it once a second.
local function cut_off(replication, grace, lease)
    local lag = math.floor((grace - lease) / 1000000) - LAG_ROUNDING
    local counted, good = tonumber(string.match(replication, 'min_slaves_good_slaves:(%d+)')) or 0, 0
    for seconds in string.gmatch(replication, 'slave%d+:[^\r]*state=online[^\r]*lag=(%d+)') do
        if tonumber(seconds) <= lag then good = good + 1 end
    end
    if good < counted then
        return redis.error_reply('NOREPLICAS a replica has not acknowledged writes for ' .. math.max(0, lag) .. ' s')
    end
end

-- Calls the first waiter. Ignores errors, because the user may lack the permission.
local function call(channel)
    local first = string.match(waiters[1] or '', '^%x+')
    if first and channel ~= '' then redis.pcall('PUBLISH', channel, string.sub(first, 1, CALLED_BY)) end
end
";

/// Acquires a lock. `KEYS[3]` the record of the server, `KEYS[4]` the names of the locks. `ARGV`: 1 id, 2 the lease in
/// microseconds, 3 how many tokens, 4 the holder, 5 the holder for the history, 6 the ttl in milliseconds, 7 the time
/// on the server's clock from which on the claim is too late, 8 whether the claim ignores the waiters, 9 the failover
/// grace in microseconds, 10 the name, 11 for how many microseconds a primary that is cut off may continue to write, 12
/// and 13 the first waiter or nothing, and for how many microseconds the lock was kept for it before it was last taken.
///
/// A claim whose grant has ended is never granted again. Neither is a claim that arrives after its client gave up,
/// because no process would release it. A free lock is kept for the waiters before the claim until their grace is over.
/// Then they lose their places. After a restart or a promotion, the server grants nothing during the failover grace,
/// because it may have lost grants.
const ACQUIRE: &str = r"
local id, lease, is_late, grace = ARGV[1], tonumber(ARGV[2]), now >= tonumber(ARGV[7]), tonumber(ARGV[9])
local replication = grace > 0 and redis.call('INFO', 'replication') or ''
if broken then return answer('refused') end
if r.grant == id then
    if foreign or not ours or r.state ~= 'held' then return answer('refused') end
    if is_late then return answer('late') end
    -- An earlier request was granted. A repetition never shortens the lease, because another process may have the
    -- same grant with a longer ttl.
    lease = math.max(lease, tonumber(r.lease))
    local refused = cut_off(replication, grace, lease)
    if refused then return refused end
    redis.call('HSET', KEYS[2], 'until', text(now + lease), 'lease', text(lease),
        'ttl', text(math.max(tonumber(ARGV[6]), tonumber(r.ttl) or 0)))
    set(lease)
    return answer('granted')
end
if live or was_granted(id) then return answer('refused') end
if is_late then return answer('late') end

if grace > 0 then
    local refused = cut_off(replication, grace, lease)
    if refused then return refused end
    local server = redis.call('INFO', 'server')
    local run = string.match(server, 'run_id:(%x+)') or ''
    local epoch = run .. ' ' .. (string.match(replication, 'master_replid:(%x+)') or '')
    local known = redis.call('HMGET', KEYS[3], 'epoch', 'since', 'grace')
    local since, was_primary = tonumber(known[2]), string.find(replication, 'master_replid2:0+\r')
    -- The replicas may have connected after the client did.
    local replicas = tonumber(string.match(replication, 'connected_slaves:(%d+)')) or 0
    if replicas > 0 and lease + tonumber(ARGV[11]) > grace then return answer('outlasts') end
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
        redis.call('HSET', KEYS[3], 'epoch', epoch, 'since', text(since), 'grace', text(grace))
    end
    if since + grace > now then return answer('recovering', text(since + grace - now)) end
end

local own = place_of(id)
if ARGV[8] == '0' and now >= until_us then
    local count, longest = 0, 0
    for place, line in ipairs(waiters) do
        if place == own then break end
        local polls = tonumber(string.match(line, '^%x+ (%d+) ')) or 0
        count, longest = count + 1, math.max(longest, math.min(polls, LONGEST))
    end
    local kept = ARGV[12] ~= '' and place_of(ARGV[12]) == 1 and tonumber(ARGV[13]) or 0
    if count > 0 and until_us - kept + (2 * longest + EACH * count) * 1000 > now then return answer('refused') end
end

local token = math.max((tonumber(r.token) or 0) + tonumber(ARGV[3]), now)
if token >= MOST then return answer('refused') end
local history = r.past or ''
if r.state == 'held' then history = past('lapsed', until_us) end
local before, line = r.token or '', r.waiters or ''
if ARGV[8] == '0' then line = table.concat(waiters, '\n', (own or #waiters) + 1) end
r.grant = id
redis.call('ZADD', KEYS[4], 0, ARGV[10])
redis.call('HSET', KEYS[2], 'grant', id, 'token', text(token), 'prev', before, 'state', 'held', 'from', text(now),
    'until', text(now + lease), 'lease', ARGV[2], 'ttl', ARGV[6], 'holder', ARGV[4], 'shown', ARGV[5], 'past', history,
    'waiters', line)
set(lease)
foreign = false
return answer('granted')
";

/// Renews a grant. `ARGV`: 1 id, 2 token, 3 the failover grace in microseconds.
const RENEW: &str = r"
if broken or r.grant ~= ARGV[1] or r.token ~= ARGV[2] or r.state ~= 'held' or not ours then return answer('found') end
if foreign then
    -- Someone deleted the string, and another client set its own. The grant stays ended when that string is gone.
    redis.call('HSET', KEYS[2], 'state', 'free', 'until', text(now), 'past', past('lapsed', now))
    return answer('found')
end
local lease, grace = tonumber(r.lease), tonumber(ARGV[3])
local refused = grace > 0 and cut_off(redis.call('INFO', 'replication'), grace, lease)
if refused then return refused end
redis.call('HSET', KEYS[2], 'until', text(now + lease))
set(lease)
return answer('done')
";

/// Releases a grant. `ARGV`: 1 id, 2 the token or nothing, 3 the cooldown in microseconds, 4 the channel for the first
/// waiter or nothing.
const RELEASE: &str = r"
if broken or r.grant ~= ARGV[1] or r.state ~= 'held' or (ARGV[2] ~= '' and r.token ~= ARGV[2]) then return answer('found') end
local cooldown, history = tonumber(ARGV[3]), past('released', now)
if value == r.grant then redis.call('DEL', KEYS[1]) end
if cooldown > 0 and not foreign then set(cooldown) end
redis.call('HSET', KEYS[2], 'until', text(now + cooldown), 'state', cooldown > 0 and 'resting' or 'free', 'past', history)
call(ARGV[4])
return answer('done')
";

/// Evicts a grant. `ARGV`: 1 token, 2 the channel for the first waiter or nothing, 3 who evicts it and why, in JSON, or
/// nothing. The history of a lock in a cooldown
/// already has the grant.
const EVICT: &str = r"
if broken or r.token ~= ARGV[1] or (r.state ~= 'held' and r.state ~= 'resting') then return answer('found') end
local history = r.past or ''
if r.state == 'held' then history = past('evicted', now, ARGV[3]) end
if value == r.grant then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[2], 'until', text(now), 'state', 'free', 'past', history)
call(ARGV[2])
return answer('done')
";

const READ: &str = r"
return answer('found')
";

/// Adds a claim to the waiters. `ARGV`: 1 id, 2 the holder, 3 the pause of a single waiter and 4 its longest pause,
/// both in milliseconds.
const JOIN: &str = r"
if not (live or #waiters > 0) or #waiters >= MAX_WAITERS or place_of(ARGV[1]) or r.grant == ARGV[1] or was_granted(ARGV[1]) then
    return answer('found')
end
local polls = math.min((#waiters + 1) * tonumber(ARGV[3]), tonumber(ARGV[4]))
waiters[#waiters + 1] = ARGV[1] .. ' ' .. text(polls) .. ' ' .. text(now) .. ' ' .. ARGV[2]
redis.call('HSET', KEYS[2], 'waiters', table.concat(waiters, '\n'))
return answer('done')
";

/// Removes a claim from the waiters. `ARGV`: 1 id.
const LEAVE: &str = r"
local place = place_of(ARGV[1])
if place then
    table.remove(waiters, place)
    if #waiters == 0 and not r.grant then
        redis.call('DEL', KEYS[2])
    else
        redis.call('HSET', KEYS[2], 'waiters', table.concat(waiters, '\n'))
    end
end
return answer('done')
";

/// Deletes the record of a lock that has been free for long enough. Keeps a record whose token is ahead of the clock,
/// because the next token would come from the clock. `KEYS[3]` the names of the locks. `ARGV`: 1 for how long the lock
/// must have been free, in microseconds, 2 whether to delete it, 3 the name.
const SWEEP: &str = r"
local is_free = r.state == 'free' or r.state == 'resting'
if broken or live or not is_free or tonumber(r.token) >= now or until_us + tonumber(ARGV[1]) > now then
    return answer('found')
end
if ARGV[2] == '1' then
    redis.call('DEL', KEYS[2])
    redis.call('ZREM', KEYS[3], ARGV[3])
end
return answer('done')
";

/// Deletes the record of a free lock. `KEYS[3]` the names of the locks. `ARGV`: 1 the name.
const DISCARD: &str = r"
if live or (r.grant and r.state ~= 'free') then return answer('found') end
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
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
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) evict: Script,
    pub(super) read: Script,
    pub(super) join: Script,
    pub(super) leave: Script,
    pub(super) sweep: Script,
    pub(super) discard: Script,
    pub(super) names: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: of_a_lock(ACQUIRE),
            renew: of_a_lock(RENEW),
            release: of_a_lock(RELEASE),
            evict: of_a_lock(EVICT),
            read: of_a_lock(READ),
            join: of_a_lock(JOIN),
            leave: of_a_lock(LEAVE),
            sweep: of_a_lock(SWEEP),
            discard: of_a_lock(DISCARD),
            names: Script::new(NAMES),
        }
    }
}

fn of_a_lock(step: &str) -> Script {
    let constants = format!(
        "local HISTORY, MOST, MAX_WAITERS, LONGEST, EACH, CALLED_BY, LAG_ROUNDING = {HISTORY}, {}, {MAX_WAITERS}, {}, {}, {CALLED_BY}, {}",
        Token::LIMIT,
        crate::lease::LONGEST_PAUSE.as_millis(),
        grace([Duration::ZERO]).as_millis(),
        LAG_ROUNDING.as_secs(),
    );
    Script::new(&format!("{constants}{BEGIN}{step}"))
}
