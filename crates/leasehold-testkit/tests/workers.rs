//! Worker processes that acquire locks, and checks that apply to every store.

use std::path::Path;

use leasehold_testkit::process::Process;
pub(crate) use leasehold_testkit::process::within;

/// How many processes add to one counter, and how many times each: 400 additions.
const PROCESSES: usize = 16;
const TIMES: usize = 25;

/// A running worker, which is killed on drop.
pub(crate) struct Worker(Process);

impl Worker {
    /// Starts a worker with `verb` on `lock` in the store at `url`.
    pub(crate) fn start(verb: &str, url: &str, lock: &str, more: &[&str]) -> Self {
        let arguments = [verb, "--store", url, "--lock", lock].into_iter().chain(more.iter().copied());
        Self(Process::start(env!("CARGO_BIN_EXE_leasehold-testkit-worker"), arguments))
    }

    /// Returns the worker's next line, or `None` if the worker has ended.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.0.line().await
    }

    /// Waits until the worker prints that it was granted the lock. Returns the token.
    pub(crate) async fn granted(&mut self) -> u64 {
        let line = self.line().await.expect("the worker ended without output");
        let token = line.strip_prefix("granted ").unwrap_or_else(|| panic!("{line}"));
        token.parse().unwrap()
    }

    /// Kills the worker with `kill -9`, and waits until it has ended.
    pub(crate) async fn kill(&mut self) {
        self.0.kill().await;
    }

    /// Closes the worker's input. Returns the remaining lines and the exit code.
    pub(crate) async fn end(self) -> (Vec<String>, Option<i32>) {
        self.0.end().await
    }
}

/// One addition: the token, and the times between which the lock was held, on the machine's clock.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) token: u64,
    pub(crate) from: u128,
    pub(crate) until: u128,
}

impl Addition {
    pub(crate) fn read(line: &str) -> Self {
        let numbers: Vec<u128> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { token: numbers[0].try_into().unwrap(), from: numbers[1], until: numbers[2] }
    }
}

/// Lets 16 processes add to the number in one file, 25 times each, under one lock. Asserts that the sum is exact, that
/// no two processes held the lock at once, and that tokens rise in the order in which it was held. Three of four
/// processes barge, so that they race for the lock. The others wait in line. Repeats this `LEASEHOLD_TEST_RUNS` times.
pub(crate) async fn count_exactly(url: &str, folder: &Path) {
    let runs = std::env::var("LEASEHOLD_TEST_RUNS").map_or(1, |runs| runs.parse().unwrap());
    for run in 0..runs {
        let file = folder.join(format!("counter-{run}"));
        std::fs::write(&file, "0").unwrap();
        let times = TIMES.to_string();
        let more = ["--file", file.to_str().unwrap(), "--times", &times];
        let workers: Vec<_> = (0..PROCESSES)
            .map(|n| {
                let order: &[&str] = if n % 4 == 0 { &[] } else { &["--order", "barge"] };
                Worker::start("increment", url, &format!("counter-{run}"), &[&more[..], order].concat())
            })
            .collect();
        let mut additions = Vec::new();
        for worker in workers {
            let (said, code) = worker.end().await;
            assert_eq!(code, Some(0), "a worker failed");
            additions.extend(said.iter().map(|line| Addition::read(line)));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), (PROCESSES * TIMES).to_string());
        assert_eq!(additions.len(), PROCESSES * TIMES);
        additions.sort_by_key(|addition| addition.from);
        for pair in additions.windows(2) {
            assert!(pair[0].until <= pair[1].from, "held by two at once: {pair:?}");
            assert!(pair[0].token < pair[1].token, "tokens do not rise: {pair:?}");
        }
    }
}

/// Asserts that three processes can hold a permit each and that a fourth gets none. Then lets 16 processes hold a
/// permit a few times each. Asserts that never more than three hold one at once, and that each permit is a lock with
/// rising tokens.
pub(crate) async fn never_more_processes_than_permits(url: &str) {
    const PERMITS: usize = 3;
    const TIMES: usize = 4;
    let (permits, times) = (PERMITS.to_string(), TIMES.to_string());
    let more = ["--permits", &permits];
    let mut holders: Vec<_> = (0..PERMITS).map(|_| Worker::start("hold", url, "all", &more)).collect();
    for holder in &mut holders {
        holder.granted().await;
    }
    let (said, code) = Worker::start("try", url, "all", &more).end().await;
    assert_eq!(code, Some(1), "{said:?}");
    drop(holders);

    let more = ["--permits", &permits, "--times", &times];
    let workers: Vec<_> = (0..PROCESSES).map(|_| Worker::start("permit", url, "render", &more)).collect();
    let (mut events, mut by_permit) = (Vec::new(), std::collections::BTreeMap::<_, Vec<_>>::new());
    for worker in workers {
        let (said, code) = worker.end().await;
        assert_eq!((said.len(), code), (TIMES, Some(0)), "a worker failed");
        for line in said {
            let (permit, hold) = line.split_once(' ').unwrap();
            let hold = Addition::read(hold);
            events.extend([(hold.from, 1), (hold.until, -1)]);
            by_permit.entry(permit.to_owned()).or_default().push(hold);
        }
    }
    events.sort_unstable();
    let held = events.iter().scan(0, |held, (_, step)| {
        *held += step;
        Some(*held)
    });
    assert!(held.max() <= Some(PERMITS as i32), "more at once than there are permits");
    for (permit, mut holds) in by_permit {
        holds.sort_by_key(|hold| hold.from);
        for pair in holds.windows(2) {
            assert!(pair[0].until <= pair[1].from, "{permit} held by two at once: {pair:?}");
            assert!(pair[0].token < pair[1].token, "tokens of {permit} do not rise: {pair:?}");
        }
    }
}
