//! Runs the recipes of the guide on fencing tokens in a race, after the guide itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::runner::GuideRun;

pub(crate) const FILE: &str = "fencing.md";

/// The largest possible token. The tokens of the race are lower, but higher than all tokens from stores.
const LARGEST: u64 = (1 << 53) - 1;

/// The recipes. Each has a command that saves with a token, and one that prints the content and the token on separate
/// lines.
const RECIPES: &[(&str, &str)] = &[
    (
        "./save-postgresql",
        r#"psql -XAtqF $'\n' -c "SELECT content, fence FROM report WHERE id = 'daily'" "$DATABASE_URL""#,
    ),
    (
        "./save-sqlite",
        r#"sqlite3 -cmd '.timeout 10000' -separator $'\n' report.db "SELECT content, fence FROM report WHERE id = 'daily'""#,
    ),
    ("./save-redis", r#"redis-cli -u "$REDIS_URL" HMGET my-report content fence"#),
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

    /// Writers with different tokens run concurrently, while a reader checks the content.
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
        // 99 would be greater if tokens were compared as text.
        for lower in [token - 1, 99] {
            assert_eq!(self.save(lower, "late"), Some(1), "{}", self.save);
        }
        assert_eq!(self.shown(), (content, token), "{}", self.save);
        assert_eq!(self.save(token, "again"), Some(0), "{}", self.save);
        assert_eq!(self.save(token + 1, "next"), Some(0), "{}", self.save);
        assert_eq!(self.shown(), ("next".to_owned(), token + 1), "{}", self.save);
    }

    /// Returns the exit code: 0, or 1 if the write was refused.
    fn save(&self, token: u64, content: &str) -> Option<i32> {
        let (code, printed) = self.run.command(&format!("{} {token} '{content}'", self.save));
        assert!(matches!(code, Some(0 | 1)), "{} {token}: {code:?} {printed}", self.save);
        code
    }

    /// Returns the stored content and its token.
    fn shown(&self) -> (String, u64) {
        let (code, printed) = self.run.command(self.show);
        let (content, token) =
            printed.trim().split_once('\n').unwrap_or_else(|| panic!("{code:?} {printed}"));
        (content.to_owned(), token.parse().unwrap())
    }
}

/// Number of writers. It is one less than a prime, to mix their order.
const WRITERS: u64 = 4;
