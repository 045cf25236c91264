//! Help, manual pages and completions. None of them needs a store.

use crate::support::{Outcome, Sandbox};

const SUBCOMMANDS: [&str; 23] = [
    "run",
    "once",
    "elect",
    "acquire",
    "renew",
    "release",
    "ls",
    "show",
    "history",
    "wait",
    "evict",
    "resize",
    "sweep",
    "get",
    "update",
    "put",
    "agent",
    "serve",
    "init",
    "doctor",
    "completions",
    "man",
    "help",
];

#[test]
fn every_subcommand_has_help() {
    let sandbox = Sandbox::new();
    let top = sandbox.run("--help").expect(0).stdout;
    for subcommand in SUBCOMMANDS {
        assert!(top.lines().any(|line| line.trim_start().starts_with(subcommand)), "{subcommand}: {top}");
        let short = sandbox.run(&format!("{subcommand} -h")).expect(0).stdout;
        let asked = sandbox.run(&format!("help {subcommand}")).expect(0).stdout;
        assert!(short.contains("Usage: leasehold") && asked.contains("Usage: leasehold"), "{short}");
        assert!(short.lines().all(|line| line.chars().count() <= 100), "{short}");
    }
    for subcommand in [
        "run",
        "elect",
        "acquire",
        "renew",
        "ls",
        "wait",
        "evict",
        "resize",
        "sweep",
        "get",
        "update",
        "put",
        "serve",
        "doctor",
        "completions",
        "man",
    ] {
        assert!(
            sandbox.run(&format!("help {subcommand}")).expect(0).stdout.contains("Example"),
            "{subcommand}"
        );
    }
    assert!(!top.contains("__"), "what is for us alone is not shown: {top}");
}

#[test]
fn the_short_help_of_run_is_short() {
    let help = Sandbox::new().run("run -h").expect(0).stdout;
    assert!(help.lines().count() <= 60, "{} lines: {help}", help.lines().count());
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    let places: Vec<usize> = [
        "[LOCK]",
        "<CMD>",
        "--try",
        "--wait",
        "--ttl",
        "--max-hold",
        "Waiting:",
        "The command and its end:",
        "Several holders:",
        "Tickets:",
        "Reporting:",
        "Examples:",
    ]
    .iter()
    .map(|word| help.find(word).expect(word))
    .collect();
    assert!(places.is_sorted(), "{places:?} {help}");
}

#[test]
fn words_of_other_tools_lead_to_ours() {
    let sandbox = Sandbox::new();
    for (line, help) in [
        (
            "run x --timeout 5m -- true",
            "--wait limits the wait for the lock, and --max-hold how long it is held",
        ),
        (
            "run x --timeout=5m -- true",
            "--wait limits the wait for the lock, and --max-hold how long it is held",
        ),
        ("run x --per 1h -- true", "to run a command once per period: leasehold once LOCK --per 12h -- CMD"),
        ("run x --nonblock -- true", "use --try"),
        ("list", "to list locks: leasehold ls"),
        ("status x", "to see one lock: leasehold show LOCK; to see all: leasehold ls"),
        ("lock x", "leasehold run LOCK -- CMD; to hold it across commands: leasehold acquire LOCK"),
        ("unlock x", "leasehold release; to end the hold of a process: leasehold evict LOCK --token N"),
        ("force-unlock x", "leasehold evict LOCK --token N, with the token from leasehold show LOCK"),
        ("deploy/prod -- make", "to run a command under a lock: leasehold run LOCK -- CMD"),
        ("evict x", "the token of the holder is in leasehold show LOCK"),
        ("release deploy/prod", "leasehold evict LOCK --token N"),
        ("shwo x", "a similar subcommand exists: 'show'"),
        ("run x --max-hodl 1h -- true", "a similar argument exists: '--max-hold'"),
    ] {
        let refused = sandbox.run(line).expect(2);
        assert!(refused.stderr.contains(help), "{line}: {refused:?}");
        assert!(
            !refused.stderr.contains("'--store-timeout'"),
            "what the parser suggests is replaced: {refused:?}"
        );
        let json = sandbox.run(&format!("--json {line}")).expect(2);
        assert!(json.stderr.contains(&help.replace('"', "\\\"")), "{line}: {json:?}");
    }
    assert!(!sandbox.path("state").exists());
}

/// Compares the help of each subcommand and topic with `tests/help`, so that reviewers see every change.
#[test]
#[cfg(feature = "all-stores")] // With fewer stores, `help stores` differs.
fn every_help_text_is_the_one_that_was_reviewed() {
    let sandbox = Sandbox::new();
    let pages = SUBCOMMANDS.iter().chain(&["exit-codes", "environment", "stores"]);
    let pages = pages.map(|page| ((*page).to_owned(), format!("help {page}")));
    let pages = pages.chain([("run-short".to_owned(), "run -h".to_owned())]);
    let pages = std::iter::once(("leasehold".to_owned(), "--help".to_owned())).chain(pages);
    assert_reviewed(pages.map(|(page, words)| (page, sandbox.run(&words).expect(0).stdout)));
}

/// Compares texts with the files in `tests/help` that have these names.
#[track_caller]
pub(super) fn assert_reviewed(texts: impl IntoIterator<Item = (String, String)>) {
    const UPDATE: &str = "UPDATE_HELP";
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let update = std::env::var_os(UPDATE).is_some();
    let mut wrong = String::new();
    for (name, text) in texts {
        let file = folder.join(format!("{name}.txt"));
        if update {
            std::fs::write(&file, &text).unwrap();
        }
        let reviewed = std::fs::read_to_string(&file).unwrap_or_default();
        if text != reviewed {
            wrong += &format!("{}:\n{}", file.display(), difference(&reviewed, &text));
        }
    }
    assert!(
        wrong.is_empty(),
        "{wrong}\nif this is meant, run the test again with {UPDATE}=1, and commit what it writes"
    );
}

/// Returns the lines that differ between two texts.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let only = |sign: char, these: &[&str], others: &[&str]| -> String {
        these.iter().filter(|line| !others.contains(line)).map(|line| format!("{sign} {line}\n")).collect()
    };
    only('-', &old, &new) + &only('+', &new, &old)
}

/// The help must begin with the description of the subcommand, not of a flattened struct.
#[test]
fn each_help_text_begins_with_its_description() {
    let sandbox = Sandbox::new();
    let top = sandbox.run("--help").expect(0).stdout;
    for subcommand in SUBCOMMANDS {
        let line = top.lines().find(|line| line.split_whitespace().next() == Some(subcommand)).unwrap();
        let about = line.trim_start().strip_prefix(subcommand).unwrap().trim();
        for words in [format!("{subcommand} -h"), format!("help {subcommand}")] {
            let help = sandbox.run(&words).expect(0).stdout;
            // Long descriptions are wrapped.
            assert!(help.starts_with(&about[..about.len().min(60)]), "{words}: {help}");
        }
    }
}

#[test]
fn the_topics_cover_every_code_flag_and_store() {
    let sandbox = Sandbox::new();
    let codes = sandbox.run("help exit-codes").expect(0).stdout;
    for code in ["122", "123", "124", "125", "126", "127", "128"] {
        assert!(codes.contains(code), "{code}");
    }
    let environment = sandbox.run("help environment").expect(0).stdout;
    for name in
        ["STORE", "TTL", "WAIT", "TRY", "OWNER", "NOTE", "ON_LOST", "GRACE", "REPORT", "TOKEN", "LOCK"]
    {
        assert!(environment.contains(&format!("LEASEHOLD_{name}")), "{name}");
    }
    let stores = sandbox.run("help stores").expect(0).stdout;
    for text in [codes, environment, stores.clone()] {
        let long = text.lines().find(|line| line.chars().count() > 80 && line.trim().contains(' '));
        assert_eq!(long, None);
    }
    assert!(stores.contains("sqlite:") && stores.contains("s3://") && stores.contains("mem:"), "{stores}");
}

#[test]
fn the_manual_has_a_page_for_each_subcommand() {
    let sandbox = Sandbox::new();
    let page = sandbox.run("man").expect(0).stdout;
    assert!(
        page.contains(".TH") && page.contains("EXIT CODES") && page.contains("LEASEHOLD_STORE"),
        "{page}"
    );
    assert!(sandbox.run("man run").expect(0).stdout.contains(".TH LEASEHOLD-RUN"));
    std::fs::create_dir(sandbox.path("man1")).unwrap();
    sandbox.run("man --dir man1").expect(0);
    assert!(
        sandbox.read("man1/leasehold-run.1").contains("on\\-lost")
            && !sandbox.read("man1/leasehold.1").is_empty()
    );
    assert!(!sandbox.path("state").exists(), "nothing of this needs a store");
}

#[test]
fn shells_complete_subcommands_and_lock_names() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = sandbox.run(&format!("completions {shell}")).expect(0).stdout;
        assert!(script.contains("leasehold") && script.contains("LEASEHOLD_COMPLETE"), "{shell}: {script}");
    }
    sandbox.run("run deploy/prod -- true").expect(0);
    sandbox.run("run nightly -- true").expect(0);
    let complete = |line: &[&str]| {
        let mut command = sandbox.leasehold(["--", "leasehold"].iter().chain(line));
        command.env("LEASEHOLD_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", line.len().to_string());
        command
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "true")
            .env("_CLAP_IFS", "\n");
        Outcome::of(command.output().unwrap()).expect(0).stdout
    };
    assert!(complete(&["re"]).contains("release") && complete(&["show", "--sto"]).contains("--store"));
    assert_eq!(complete(&["show", "dep"]).trim(), "deploy/prod");
    assert!(complete(&["run", ""]).contains("nightly"));
    let other = format!("sqlite:{}", sandbox.path("other.db").display());
    sandbox.run(&format!("-s {other} run elsewhere -- true")).expect(0);
    assert_eq!(complete(&["-s", &other, "show", "e"]).trim(), "elsewhere");
}

/// Names that a shell would interpret, or that this command would take for an option.
const HOSTILE: [&str; 12] = [
    "d$(touch${IFS}pwned)",
    "d`touch${IFS}pwned`",
    "d;touch${IFS}pwned",
    "d&touch${IFS}pwned",
    "d|touch${IFS}pwned",
    "d>pwned",
    "d<pwned",
    "d pwned",
    "d*",
    "d'\"",
    "d\\pwned",
    "d{pwned,pwned}",
];

#[test]
fn a_completion_is_one_word_that_no_shell_interprets() {
    let sandbox = Sandbox::new();
    for name in HOSTILE {
        Outcome::of(sandbox.leasehold(["run", name, "--", "true"]).output().unwrap()).expect(0);
        sandbox.write(name, "");
    }
    let text = sandbox.run("acquire --ttl 1h -- -d").expect(0).stdout;
    sandbox.run(&format!("release {text}")).expect(0);
    sandbox.run("run deploy/prod -- true").expect(0);
    sandbox.write("data", "");
    let complete = |shell: &str, line: &[&str]| {
        let mut command = sandbox.leasehold(["--", "leasehold"].iter().chain(line));
        command.env("LEASEHOLD_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", line.len().to_string());
        Outcome::of(command.output().unwrap()).expect(0).stdout
    };
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        for words in [["show", "d"], ["run", "d"], ["ls", "d"]] {
            assert_eq!(complete(shell, &words).trim(), "deploy/prod", "{shell} {words:?}");
        }
        let all = complete(shell, &["history", ""]);
        assert!(
            all.contains("deploy/prod") && !all.lines().any(|line| line.starts_with("-d")),
            "{shell}: {all}"
        );
    }
    // These two do not quote the names of files either.
    for shell in ["bash", "powershell"] {
        let files = complete(shell, &["run", "x", "--report", "d"]);
        assert_eq!(files.split_whitespace().next(), Some("data"), "{files}");
        assert!(!files.contains("pwned") && !files.contains('*'), "{files}");
    }
}

#[test]
fn bash_runs_no_part_of_a_completion() {
    let sandbox = Sandbox::new();
    let names = HOSTILE.into_iter().chain(["deploy/prod"]);
    for name in names {
        Outcome::of(sandbox.leasehold(["run", name, "--", "true"]).output().unwrap()).expect(0);
    }
    let ours = sandbox.leasehold(["completions", "bash"]);
    let mut bash = std::process::Command::new("bash");
    bash.args([
        "-c",
        "source <(leasehold completions bash); COMP_WORDS=(leasehold show d) COMP_CWORD=2 COMP_TYPE=9
        _clap_complete_leasehold leasehold d show; eval \"echo ${COMPREPLY[@]}\"",
    ]);
    let program = std::path::Path::new(ours.get_program()).parent().unwrap().to_owned();
    let path = std::env::join_paths(std::iter::once(program).chain(["/usr/bin".into(), "/bin".into()]));
    bash.envs(ours.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let ended = Outcome::of(bash.env("PATH", path.unwrap()).current_dir(sandbox.path("")).output().unwrap());
    assert_eq!(ended.expect(0).stdout, "deploy/prod\n");
    assert!(!sandbox.path("pwned").exists());
}

#[test]
fn an_unrelated_complete_variable_does_not_affect_run() {
    let sandbox = Sandbox::new();
    for value in ["bash", "1"] {
        let output =
            sandbox.leasehold(["run", "x", "--", "echo", "ran"]).env("COMPLETE", value).output().unwrap();
        assert_eq!(Outcome::of(output).expect(0).stdout, "ran\n");
    }
}
