//! The recipes of the guide on tokens, once it has been followed: its own scripts, in a race.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::runner::GuideRun;

pub(crate) const FILE: &str = "fencing.md";

/// The largest token that there can be. Those of the race are below it, and above all that a store has granted.
const LARGEST: u64 = (1 << 53) - 1;

/// The recipes: what saves with a token, and what shows the content and the token, a line each.
const RECIPES: &[(&str, &str)] = &[
    (
        "./save-postgresql",
        r#"psql -XAtqF $'\n' -c "SELECT content, fence FROM report WHERE id = 'daily'" "$DATABASE_URL""#,
    ),
    (
        "./save-sqlite",
        r#"sqlite3 -cmd '.timeout 10000' -separator $'\n' report.db "SELECT content, fence FROM report WHERE id = 'daily'""#,
    ),
    (
        "./save-dynamodb",
        r#"aws dynamodb get-item --consistent-read --table-name my-table --key '{"id": {"S": "daily"}}' |
            jq -r '.Item.content.S, .Item.fence.N'"#,
    ),
    (
        "ETCDCTL_ENDPOINTS=10.0.0.1:2379 ./save-etcd",
        "ETCDCTL_ENDPOINTS=10.0.0.1:2379 etcdctl get --print-value-only --prefix my-app/report/",
    ),
    (
        "./save-object",
        r#"aws s3api get-object --bucket my-bucket --key report.txt shown-object >shown &&
            cat shown-object && jq -r '.Metadata["leasehold-token"]' shown"#,
    ),
];

#[test]
fn a_late_write_is_refused_and_tokens_never_go_back() {
    let run = super::follow(FILE);
    for (save, show) in RECIPES {
        let recipe = Recipe { run: &run, save, show };
        recipe.writes_nothing_without_a_token();
        recipe.in_a_race();
        recipe.refuses_late_ones();
    }
}

struct Recipe<'a> {
    run: &'a GuideRun,
    save: &'a str,
    show: &'a str,
}

impl Recipe<'_> {
    fn writes_nothing_without_a_token(&self) {
        for bad in ["''", "'x'"] {
            let (code, _) = self.run.command(&format!("{} {bad} content", self.save));
            assert_ne!(code, Some(0), "{} {bad}", self.save);
            assert_eq!(self.shown().0, "second", "{} {bad}", self.save);
        }
    }

    /// Writers with different tokens, all at once, while somebody watches.
    fn in_a_race(&self) {
        let over = AtomicBool::new(false);
        let accepted = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut latest = 0;
                while !over.load(Ordering::Relaxed) {
                    let (content, token) = self.shown();
                    assert!(token >= latest, "{}: {token} after {latest}", self.save);
                    assert!(
                        content == "second" || content == format!("by {token}"),
                        "{}: {content} {token}",
                        self.save
                    );
                    latest = token;
                }
            });
            let tokens = (1..=WRITERS).map(|n| LARGEST - (n * 7) % (WRITERS + 1));
            let writers: Vec<_> = tokens
                .map(|token| (token, scope.spawn(move || self.save(token, &format!("by {token}")))))
                .collect();
            let results = writers.into_iter().map(|(token, writer)| (token, writer.join().unwrap()));
            let accepted: Vec<u64> =
                results.filter(|(_, code)| *code == Some(0)).map(|(token, _)| token).collect();
            over.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
            accepted
        });
        let highest = LARGEST - 1;
        assert!(accepted.contains(&highest), "{}: {accepted:?}", self.save);
        assert_eq!(self.shown(), (format!("by {highest}"), highest), "{}: {accepted:?}", self.save);
    }

    fn refuses_late_ones(&self) {
        let (content, token) = self.shown();
        // Also the one that is greater in the order of a dictionary.
        for lower in [token - 1, 99] {
            assert_eq!(self.save(lower, "late"), Some(1), "{}", self.save);
        }
        assert_eq!(self.shown(), (content, token), "{}", self.save);
        assert_eq!(self.save(token, "again"), Some(0), "{}", self.save);
        assert_eq!(self.save(token + 1, "next"), Some(0), "{}", self.save);
        assert_eq!(self.shown(), ("next".to_owned(), token + 1), "{}", self.save);
    }

    /// Gives the exit code: 0, or 1 when it was refused.
    fn save(&self, token: u64, content: &str) -> Option<i32> {
        let (code, printed) = self.run.command(&format!("{} {token} '{content}'", self.save));
        assert!(matches!(code, Some(0 | 1)), "{} {token}: {code:?} {printed}", self.save);
        code
    }

    /// What is stored, and with which token.
    fn shown(&self) -> (String, u64) {
        let (code, printed) = self.run.command(self.show);
        let (content, token) =
            printed.trim().split_once('\n').unwrap_or_else(|| panic!("{code:?} {printed}"));
        (content.to_owned(), token.parse().unwrap())
    }
}

/// So many at once, one less than a prime so that their order is mixed.
const WRITERS: u64 = 10;
