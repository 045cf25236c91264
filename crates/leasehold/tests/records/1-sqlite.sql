PRAGMA application_id = 1818774603;
PRAGMA user_version = 1;
CREATE TABLE counter (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    token   INTEGER NOT NULL, -- the highest token of all locks
    ceiling INTEGER NOT NULL, -- no token up to here is used again after a power failure
    boot    TEXT NOT NULL
) STRICT;
CREATE TABLE lock (
    name       TEXT PRIMARY KEY NOT NULL,
    record     TEXT NOT NULL,    -- JSON, as on other stores
    boot       TEXT NOT NULL,    -- the boot whose clock the _ns columns are on
    renewed_ns INTEGER NOT NULL, -- when the record was written
    died_ns    INTEGER,          -- when its process was first seen dead
    process    TEXT              -- JSON: who must run for the lease to last; NULL when detached
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
INSERT INTO lock VALUES ('cooldown', '{"leasehold":1,"state":"cooldown","token":7,"grant":"00112233445566778899aabbccddeeff","heartbeat":0,"nonce":"ffeeddccbbaa99887766554433221102","ttl_ms":500,"holder":{"name":"alice","host":"ci-7","pid":4121},"granted_at_us":1,"renewed_at_us":1763654430000041,"cooldown_ms":60000}', '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', 86410000000000, NULL, NULL);
INSERT INTO lock VALUES ('died', '{"leasehold":1,"state":"held","token":1763654400000041,"grant":"00112233445566778899aabbccddeeff","heartbeat":3,"nonce":"ffeeddccbbaa99887766554433221100","ttl_ms":30000,"lock_delay_ms":1500,"holder":{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"},"granted_at_us":1763654400000041,"renewed_at_us":1763654430000041,"history":[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]}', '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', 86410000000000, 86411000000000, '{"namespace":"pid:[4026531836]","pid":4121,"start":77}');
INSERT INTO lock VALUES ('free', '{"leasehold":1,"state":"free","token":1763654400000041,"grant":"00112233445566778899aabbccddeeff","heartbeat":3,"nonce":"ffeeddccbbaa99887766554433221101","ttl_ms":30000,"holder":{"name":"alice","host":"ci-7","pid":4121},"renewed_at_us":1763654430000041,"history":[{"token":1763654400000041,"grant":"00112233445566778899aabbccddeeff","holder":{"name":"alice","host":"ci-7","pid":4121},"end":"released"}]}', '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', 86410000000000, NULL, NULL);
INSERT INTO lock VALUES ('held', '{"leasehold":1,"state":"held","token":1763654400000041,"grant":"00112233445566778899aabbccddeeff","heartbeat":3,"nonce":"ffeeddccbbaa99887766554433221100","ttl_ms":30000,"lock_delay_ms":1500,"holder":{"name":"alice","host":"ci-7","pid":4121,"note":"make deploy"},"granted_at_us":1763654400000041,"renewed_at_us":1763654430000041,"history":[{"token":1763654400000040,"grant":"0123456789abcdef0123456789abcdef","holder":{"name":"bob","host":"ci-8","pid":1},"from_us":1763654300000000,"until_us":1763654390000000,"end":"lapsed"}]}', '3d3b0d5c-6b0e-4b57-8e8f-9a3b1c5f7e21', 86410000000000, NULL, '{"namespace":"pid:[4026531836]","pid":4121,"start":77}');
