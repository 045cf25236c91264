//! `acquire`, `renew`, `release`: a lock without a process.

use std::fs::File;

use serde_json::Value;

use crate::support::{Outcome, Place};

#[test]
fn a_ticket_is_all_that_acquire_prints_and_all_that_renew_and_release_need() {
    let place = Place::new();
    let acquired = place.run("acquire deploy/prod --ttl 10m").expect(0);
    assert_eq!(acquired.stderr, "");
    let ticket = acquired.stdout.trim();
    assert!(ticket.starts_with("lh1_") && !ticket.contains(char::is_whitespace), "{ticket}");
    // No process stays behind, and the lock is still held.
    place.run("run -n deploy/prod -- true").expect(123);
    assert!(place.run(&format!("renew {ticket}")).expect(0).stdout.starts_with("renewed deploy/prod"));
    let output = place.leasehold(["renew"]).env("LEASEHOLD_TICKET", ticket).output().unwrap();
    Outcome::of(output).expect(0);
    let file = place.write("ticket", &acquired.stdout);
    let output = place.leasehold(["release", "-"]).stdin(File::open(file).unwrap()).output().unwrap();
    Outcome::of(output).expect(0);
    place.run("run -n deploy/prod -- true").expect(0);
    // Over is over.
    let again = place.run(&format!("renew {ticket}")).expect(1);
    assert!(again.stderr.contains("lost"), "{again:?}");
    place.run(&format!("release {ticket}")).expect(1);
}

#[test]
fn a_ticket_knows_its_store_and_the_flag_overrides_it() {
    let place = Place::new();
    let url = format!("sqlite:{}", place.path("other.db").display());
    let ticket = place.run(&format!("-s {url} acquire x")).expect(0).stdout.trim().to_owned();
    place.run("run -n x -- true").expect(0);
    place.run(&format!("-s sqlite:{} release {ticket}", place.path("third.db").display())).expect(1);
    place.run(&format!("release {ticket}")).expect(0);
}

#[test]
fn acquire_says_who_has_it() {
    let place = Place::new();
    let first: Value = serde_json::from_str(&place.run("acquire x --json").expect(0).stdout).unwrap();
    assert_eq!((&first["type"], &first["ttl_ms"]), (&"ticket".into(), &30_000.into()));
    let held = place.run("acquire -n x").expect(123);
    assert!(held.stderr.contains("leasehold acquire --wait 10m x\n"), "{held:?}");
    assert_eq!(held.stdout, "");
    place.run("acquire -w 20ms x").expect(124);
    let token = first["token"].as_u64().unwrap();
    assert!(place.run(&format!("break x --token {token}")).expect(0).stdout.contains("evicted"));
    place.run("acquire -n x").expect(0);
}

#[test]
fn what_is_no_ticket_is_not_repeated() {
    let place = Place::new();
    for bad in ["hunter2", "lh1_hunter2", "lh1_", "lh1_é"] {
        let outcome = place.run(&format!("renew {bad}")).expect(2);
        assert!(
            !outcome.stderr.contains("hunter2") && outcome.stderr.contains("not a ticket"),
            "{outcome:?}"
        );
    }
    place.run("renew").expect(2);
    let empty = place.leasehold(["release", "-"]).output().unwrap();
    Outcome::of(empty).expect(2);
}

#[test]
fn a_ticket_for_a_relative_path_is_good_in_every_folder() {
    let place = Place::new();
    let ticket = place.run("-s sqlite:locks.db acquire x").expect(0).stdout.trim().to_owned();
    std::fs::create_dir(place.path("other")).unwrap();
    let output = place.leasehold(["release", &ticket]).current_dir(place.path("other")).output().unwrap();
    Outcome::of(output).expect(0);
}

#[test]
fn nobody_is_told_to_look_for_the_process_of_a_ticket() {
    let place = Place::new();
    place.run("acquire x --owner alice --ttl 1h").expect(0);
    let refused = place.run("run -n x -- true").expect(123);
    assert!(refused.stderr.contains("alice@") && refused.stderr.contains(" by ticket"), "{refused:?}");
    assert!(refused.stderr.contains("held by a ticket, and ends by itself in <= "), "{refused:?}");
}

#[test]
fn a_ticket_that_nobody_got_holds_nothing() {
    let place = Place::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = place.leasehold(["acquire", "x"]).stdout(full).output().unwrap();
    Outcome::of(output).expect(125);
    place.run("run -n x -- true").expect(0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.leasehold(["acquire", "x", "--json"]).stdout(writer).output().unwrap();
    Outcome::of(output).expect(125);
    place.run("run -n x -- true").expect(0);
}
