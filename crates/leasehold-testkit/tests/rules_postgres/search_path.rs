//! Nothing that another user creates, in a schema of the search path, changes what a statement means.

use futures_util::TryStreamExt;
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::lease::{Evicted, Swept};

use super::*;
use crate::leases::refused_to;

/// Creates the schema `hostile`, with everything that the statements could mean instead of what is in `pg_catalog`: all
/// functions, operators and catalogs under the same names, operators for every pair of types that the statements use,
/// and types and collations. Each of them fails when it is called, and has a result of a type that fits nowhere.
const HOSTILE: &str = r#"
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
DO $$
DECLARE
    kinds text[] := '{int2,int4,int8,float8,numeric,bool,"char",name,text,varchar,timestamp,timestamptz,interval,jsonb,
        oid,regclass,regtype}';
    what record;
BEGIN
    FOR what IN
        SELECT p.proname AS name, string_agg(
            CASE WHEN p.provariadic <> 0 AND a.place = p.pronargs THEN 'VARIADIC ' ELSE '' END
                || a.kind::regtype, ', ' ORDER BY a.place) AS arguments
        FROM pg_proc AS p LEFT JOIN unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (kind, place) ON true
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prorettype <> 'internal'::regtype
            AND 'internal'::regtype <> ALL (p.proargtypes::oid[])
        GROUP BY p.oid, p.proname
    LOOP
        EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS point LANGUAGE internal AS $f$any_in$f$',
            what.name, what.arguments);
    END LOOP;
    FOR what IN
        SELECT DISTINCT o.name, l.kind AS l, r.kind AS r
        FROM unnest('{=,<>,<,<=,>,>=,+,-,*,||,->,->>,@>,@?,~~,!~~}'::text[]) AS o (name),
            unnest(kinds) AS l (kind), unnest(kinds) AS r (kind)
        UNION
        SELECT oprname, oprleft::regtype::text, oprright::regtype::text FROM pg_operator
        WHERE oprleft <> 0 AND oprright <> 0
    LOOP
        IF to_regprocedure(format('hostile.trap(%s, %s)', what.l, what.r)) IS NULL THEN
            EXECUTE format('CREATE FUNCTION hostile.trap(%s, %s) RETURNS point LANGUAGE internal AS $f$any_in$f$',
                what.l, what.r);
        END IF;
        BEGIN
            EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.trap)',
                what.name, what.l, what.r);
        EXCEPTION WHEN duplicate_function THEN
            NULL; -- The same type under two names.
        END;
    END LOOP;
    FOR what IN SELECT relname AS name FROM pg_class
        WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
    LOOP
        EXECUTE format('CREATE VIEW hostile.%I AS SELECT point(0, 0) AS oid', what.name);
    END LOOP;
    FOR what IN SELECT trim(kind, '"') AS name FROM unnest(kinds) AS kind LOOP
        EXECUTE format('CREATE DOMAIN hostile.%I AS point', what.name);
    END LOOP;
    CREATE COLLATION hostile."C" (provider = icu, locale = 'und', deterministic = false);
END $$;
"#;

/// ShedLock's own table, with its types.
const SHEDLOCK: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name));";

/// Creates a database in whose search path the schema `hostile` is first.
async fn hostile() -> (Fresh, String) {
    let fresh = fresh();
    let name = format!("hostile_{}", table(fresh.url()));
    psql(fresh.url(), &format!("CREATE DATABASE {name}")).await;
    let server = fresh.url().split('?').next().unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    psql(&url, &format!("{SHEDLOCK}{HOSTILE}")).await;
    psql(fresh.url(), &format!("ALTER DATABASE {name} SET search_path = hostile, pg_catalog, public")).await;
    (fresh, url)
}

/// Takes each step of a lock, and fails if one of them fails.
async fn each_step(url: &str) {
    let store = open(url).await;
    store.init().await.unwrap();
    store.init().await.unwrap();
    let mut grant = granted(&*store).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    let Status { state: State::Held(held), .. } = store.inspect(&lock()).await.unwrap() else {
        panic!("not held")
    };
    assert!(held.lapses_within.unwrap() > TTL, "{held:?}");
    let mut waiter = claim(&*store);
    waiter.waits = true;
    let held = refused_to(&*store, &waiter).await;
    store.turn(&waiter, &held).await.unwrap();
    assert_eq!(refused_to(&*store, &waiter).await.ahead, Some(0));
    assert_eq!(store.evict(&lock(), grant.token, None).await.unwrap(), Evicted::Evicted);
    assert_eq!(store.evict(&lock(), grant.token, None).await.unwrap(), Evicted::Changed);
    assert!(refused(&*store).await.reserved);
    let mut grant = granted_to(&*store, &waiter).await;
    let mut second = claim(&*store);
    second.waits = true;
    let held = refused_to(&*store, &second).await;
    store.turn(&second, &held).await.unwrap();
    store.stop_waiting(&second).await.unwrap();
    assert_eq!(store.release(&mut grant, Some(TTL)).await.unwrap(), Released::Released);
    assert!(refused(&*store).await.in_cooldown);
    let status = store.inspect(&lock()).await.unwrap();
    assert_eq!((status.history.len(), status.waiters.len()), (2, 0), "{status:?}");
    let names: Vec<_> = store.list("l").try_collect().await.unwrap();
    assert_eq!(names, [lock()]);
    // With an epoch that is unknown, and with one that is known.
    let graced = open(&with_option(url, "failover_grace=60s")).await;
    let other = claim_of(&*graced, "other", TTL / 2);
    for _ in 0..2 {
        let held = refused_to(&*graced, &other).await;
        assert!(held.to_string().contains("failover_grace"), "{held}");
    }
}

#[tokio::test]
async fn objects_in_the_search_path_change_no_statement() {
    let (_fresh, url) = hostile().await;
    each_step(&with_option(&url, "table=shedlock")).await;
    each_step(&url).await;
    let store = open(&url).await;
    for (dry_run, swept) in [(true, Swept::Kept), (false, Swept::Kept)] {
        assert_eq!(store.sweep(&lock(), Duration::ZERO, dry_run).await.unwrap(), swept);
    }
    let other = claim_of(&*store, "other", TTL);
    store.release(&mut granted_to(&*store, &other).await, None).await.unwrap();
    for dry_run in [true, false] {
        assert_eq!(store.sweep(&other.name, Duration::ZERO, dry_run).await.unwrap(), Swept::Deleted);
    }
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    let failed: Vec<_> =
        report.findings.iter().filter(|found| found.verdict == CheckStatus::Failed).collect();
    // The server has fsync=off.
    assert_eq!(failed.iter().map(|found| found.check).collect::<Vec<_>>(), ["durability"], "{failed:#?}");
    assert_eq!(report.finding("notifications").unwrap().verdict, CheckStatus::Passed, "{report:?}");
}

/// PostgreSQL reads `l.token` as a call of a function if the table has no such column.
#[tokio::test]
async fn a_missing_column_is_not_read_as_a_function() {
    let fresh = fresh();
    let (url, name) = (fresh.url(), table(fresh.url()));
    let sql = format!(
        "ALTER TABLE {name} DROP COLUMN token;
         CREATE FUNCTION token({name}) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'"
    );
    psql(url, &sql).await;
    let store = open(url).await;
    let error = store.inspect(&lock()).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("token"), "{error:?}");
    assert!(error.fault().help.as_ref().unwrap().contains("leasehold init"), "{error:?}");
}
