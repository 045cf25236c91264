//! Precedence: option, environment, config.toml, default.

use crate::support::{Outcome, Sandbox};

const OWNER: &str = "\"$LEASEHOLD\" show x --json | sed 's/.*\"name\":\"//; s/\".*//'";

fn owner(sandbox: &Sandbox, words: &str, variable: Option<&str>) -> String {
    let mut command = sandbox.scripted(words, OWNER);
    if let Some(variable) = variable {
        command.env("LEASEHOLD_OWNER", variable);
    }
    Outcome::of(command.output().unwrap()).expect(0).stdout.trim().to_owned()
}

#[test]
fn an_option_overrides_a_variable_which_overrides_the_file() {
    let sandbox = Sandbox::new();
    assert_eq!(owner(&sandbox, "run x", None), "tester");
    sandbox.write("config/leasehold/config.toml", "owner = \"file\"\n");
    assert_eq!(owner(&sandbox, "run x", None), "file");
    assert_eq!(owner(&sandbox, "run x", Some("variable")), "variable");
    assert_eq!(owner(&sandbox, "run x", Some("")), "file");
    assert_eq!(owner(&sandbox, "run x --owner flag", Some("variable")), "flag");
}

#[test]
fn a_store_may_have_an_alias() {
    let sandbox = Sandbox::new();
    let other = sandbox.path("other.db");
    let config = format!("store = \"prod\"\n[stores.prod]\nurl = \"sqlite:{}\"\n", other.display());
    sandbox.write("config/leasehold/config.toml", &config);
    sandbox.run("run x -- true").expect(0);
    assert!(other.exists() && !sandbox.path("state").exists());
    let _holder = sandbox.hold("run x", "echo ready; sleep 1000");
    let held = sandbox.run("run -n x -- true").expect(123);
    assert!(held.stderr.contains("leasehold -s prod evict --token "), "{held:?}");
    let unknown = sandbox.run("-s staging ls").expect(125);
    assert!(unknown.stderr.contains("staging") && unknown.stderr.contains("prod"), "{unknown:?}");
}

#[test]
fn an_invalid_setting_is_named_with_its_source() {
    let sandbox = Sandbox::new();
    for (text, named) in [
        ("stor = \"x\"", "`stor`"),
        ("[stores.prod]\nurl = \"mem:\"\npassword = \"hunter2\"", "`password`"),
        ("ttl = 5", "line 1"),
        ("ttl = \"soon\"", "`ttl`"),
        ("= hunter2", "line 1"),
    ] {
        sandbox.write("config/leasehold/config.toml", text);
        let outcome = sandbox.run("run x -- true").expect(125);
        assert!(
            outcome.stderr.contains("config.toml") && outcome.stderr.contains(named),
            "{text}: {outcome:?}"
        );
        assert!(!outcome.stderr.contains("hunter2"), "{outcome:?}");
    }
    sandbox.write("config/leasehold/config.toml", "");
    for (variable, value) in [
        ("LEASEHOLD_TTL", "soon"),
        ("LEASEHOLD_WAIT", "-1s"),
        ("LEASEHOLD_TRY", "maybe"),
        ("LEASEHOLD_ON_LOST", "panic"),
        ("LEASEHOLD_CONFLICT_EXIT_CODE", "256"),
        ("LEASEHOLD_COLOR", "red"),
    ] {
        let output = sandbox.leasehold(["run", "x", "--", "true"]).env(variable, value).output().unwrap();
        let outcome = Outcome::of(output).expect(2);
        assert!(outcome.stderr.contains(variable), "{outcome:?}");
    }
}

#[test]
fn wait_and_try_options_override_the_variables() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("run x", "echo ready; sleep 1000");
    let run = |words: &str, variable: (&str, &str)| {
        let mut command = sandbox.leasehold(words.split_whitespace());
        Outcome::of(command.env(variable.0, variable.1).output().unwrap()).code
    };
    assert_eq!(run("run x -- true", ("LEASEHOLD_TRY", "1")), 123);
    assert_eq!(run("run x -- true", ("LEASEHOLD_WAIT", "10ms")), 124);
    assert_eq!(run("run -w 10ms x -- true", ("LEASEHOLD_TRY", "1")), 124);
    assert_eq!(run("run -n x -- true", ("LEASEHOLD_WAIT", "1h")), 123);
}

#[test]
fn the_default_note_is_the_name_of_the_command() {
    let sandbox = Sandbox::new();
    let note = |words: &str| {
        let script = "\"$LEASEHOLD\" show x --json; : hunter2";
        let shown = sandbox.run_script(words, script).expect(0).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown["held_by"]["holder"]["note"].as_str().unwrap().to_owned()
    };
    assert_eq!(note("run x"), "sh \u{2026}");
    assert_eq!(note("run x --note mine"), "mine");
    assert!(note("run x --note command-line").ends_with(": hunter2"));
    sandbox.write("config/leasehold/config.toml", "note = \"command-line\"\n");
    assert!(note("run x").starts_with("sh -c ") && note("run x").ends_with(": hunter2"));
    assert_eq!(note("run x --note mine"), "mine");
}

#[test]
fn help_and_manual_need_no_settings() {
    let sandbox = Sandbox::new();
    sandbox.write("config/leasehold/config.toml", "stor = \"x\"");
    sandbox.run("ls").expect(125);
    for words in ["help environment", "man", "completions bash"] {
        sandbox.run(words).expect(0);
    }
}

#[test]
fn the_json_variable_applies_to_early_errors() {
    let sandbox = Sandbox::new();
    sandbox.write("config/leasehold/config.toml", "stor = \"x\"");
    for (words, code, kind) in [("run", 2, "usage"), ("ls", 125, "invalid")] {
        let output = sandbox.leasehold([words]).env("LEASEHOLD_JSON", "1").output().unwrap();
        let outcome = Outcome::of(output).expect(code);
        let error: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
        assert_eq!((&error["type"], &error["kind"]), (&"error".into(), &kind.into()), "{outcome:?}");
    }
    sandbox.write("config/leasehold/config.toml", "");
    let output = sandbox.leasehold(["ls"]).env("LEASEHOLD_JSON", "maybe").output().unwrap();
    assert!(Outcome::of(output).expect(2).stderr.contains("LEASEHOLD_JSON"));
}

#[test]
fn the_default_store_is_announced_once_if_it_was_not_chosen() {
    const WARNING: &str = "warning: no store is chosen, ";
    let said = |sandbox: &Sandbox, words: &str, store: Option<&str>| {
        let mut command = sandbox.leasehold(words.split_whitespace());
        command.envs(store.map(|store| ("LEASEHOLD_STORE", store)));
        Outcome::of(command.output().unwrap()).expect(0).stderr
    };
    let sandbox = Sandbox::new();
    // There is no warning when locks are only shown, a store is chosen, or warnings are off. It then still comes later.
    assert!(!said(&sandbox, "show x", None).contains(WARNING));
    for (words, store) in
        [("run -s sqlite: x -- true", None), ("run x -- true", Some("sqlite:")), ("run -q x -- true", None)]
    {
        assert_eq!(said(&sandbox, words, store), "", "{words} {store:?}");
    }
    let first = said(&sandbox, "run x -- true", None);
    assert!(first.starts_with(WARNING) && first.lines().count() == 1, "{first}");
    assert!(first.contains(" -s ") && first.contains("LEASEHOLD_STORE=sqlite:"), "{first}");
    for words in ["run x -- true", "acquire y", "once z --per 1h -- true"] {
        assert_eq!(said(&sandbox, words, None), "", "{words}");
    }
    let other = Sandbox::new();
    other.write("config/leasehold/config.toml", "store = \"sqlite:\"\n");
    assert_eq!(said(&other, "run x -- true", None), "", "config.toml chooses it");
}
