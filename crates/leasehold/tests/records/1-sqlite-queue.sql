PRAGMA application_id = 1818774603;
PRAGMA user_version = 1;
CREATE TABLE counter (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    token   INTEGER NOT NULL, -- the highest token of all locks
    ceiling INTEGER NOT NULL, -- no token up to here is used again after a power failure
    boot    TEXT NOT NULL
) STRICT;
CREATE TABLE lock (
    name          TEXT PRIMARY KEY NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('free', 'held', 'resting')),
    token         INTEGER NOT NULL,
    boot          TEXT,    -- the boot whose clock the _ns columns are on
    grant_id      TEXT,    -- held: the id of the claim that was granted
    holder        TEXT,    -- held: JSON, for people
    ttl_ms        INTEGER,
    lock_delay_ms INTEGER,
    granted_us    INTEGER, -- wall clock, for people
    granted_ns    INTEGER,
    renewed_ns    INTEGER,
    died_ns       INTEGER, -- when its process was first seen dead
    process       TEXT,    -- JSON: who must run for the lease to last; NULL when detached
    rest_ns       INTEGER, -- resting: until then,
    rest_us       INTEGER, -- and after a reboot until then on the wall clock
    history       TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE waiter (
    number    INTEGER PRIMARY KEY, -- the order of arrival
    name      TEXT NOT NULL,        -- the lock
    claim_id  TEXT NOT NULL UNIQUE,
    holder    TEXT NOT NULL,        -- JSON, for people
    boot      TEXT NOT NULL,        -- the boot whose clock the _ns columns are on
    joined_ns INTEGER NOT NULL,
    asked_ns  INTEGER NOT NULL,     -- when it joined, or last asked for the lock while it was free for another waiter
    called_ns INTEGER,              -- when the lock was first found free for this waiter
    process   TEXT                  -- JSON: who waits
) STRICT;
CREATE INDEX waiter_of_lock ON waiter (name, number);
INSERT INTO counter VALUES (1, 1763654400000041, 1763654410000000, '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21');
INSERT INTO lock VALUES ('died', 'held', 1763654400000041, '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', '00112233445566778899aabbccddeeff', '{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}', 30000, 1500, 1763654400000041, 86400000000000, 86410000000000, 86411000000000, '{"namespace":"pid:[4026531836]","pid":4121,"start":77}', NULL, NULL, '[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]');
INSERT INTO lock VALUES ('free', 'free', 1763654400000041, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]');
INSERT INTO lock VALUES ('held', 'held', 1763654400000041, '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', '00112233445566778899aabbccddeeff', '{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"}', 30000, 1500, 1763654400000041, 86400000000000, 86410000000000, NULL, '{"namespace":"pid:[4026531836]","pid":4121,"start":77}', NULL, NULL, '[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]');
INSERT INTO lock VALUES ('resting', 'resting', 1763654400000041, '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 86500000000000, 1763654500000000, '[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]');
