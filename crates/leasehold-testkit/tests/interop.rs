//! Tests with processes of another lock client, for every store that has such a client.

use leasehold::{Guard, Locker};
use leasehold_testkit::process::{Process, within};

use crate::workers::{Addition, Worker};

/// Lets `each` processes of leasehold and `each` of another client add to the number in one file, `times` times each,
/// under one lock. `ours` and `theirs` start such a process with these options; `theirs` also gets its number. Asserts
/// that the sum is exact, that no two processes held the lock at once, and that our tokens rise in the order in which
/// it was held.
pub(crate) async fn count_exactly(
    each: usize,
    times: usize,
    ours: impl Fn(&[&str]) -> Worker,
    theirs: impl Fn(usize, &[&str]) -> Process,
) {
    let mut tokens = count_without_tokens(each, times, ours, theirs).await;
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens do not rise: {tokens:?}");
}

/// Does the same without the check of the tokens. Returns when each of our processes was granted the lock, and its
/// token.
pub(crate) async fn count_without_tokens(
    each: usize,
    times: usize,
    ours: impl Fn(&[&str]) -> Worker,
    theirs: impl Fn(usize, &[&str]) -> Process,
) -> Vec<(u128, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let additions = times.to_string();
    let options = ["--file", file.to_str().unwrap(), "--times", &additions];
    let theirs: Vec<_> = (0..each).map(|n| theirs(n, &options)).collect();
    let ours: Vec<_> = (0..each).map(|_| ours(&options)).collect();

    let (mut all, mut tokens) = (Vec::new(), Vec::new());
    for worker in ours {
        let (said, code) = worker.end().await;
        assert_eq!(code, Some(0), "one of ours failed");
        for line in said {
            let addition = Addition::read(&line);
            tokens.push((addition.from, addition.token));
            all.push((addition.from, addition.until));
        }
    }
    let numbers = |line: &str| -> Vec<u128> { line.split(' ').map(|n| n.parse().unwrap()).collect() };
    for peer in theirs {
        let (said, code) = peer.end().await;
        assert_eq!(code, Some(0), "one of theirs failed");
        all.extend(said.iter().map(|line| numbers(line)).map(|numbers| (numbers[0], numbers[1])));
    }
    let sum = 2 * each * times;
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), sum.to_string());
    assert_eq!(all.len(), sum);
    // Other clients may print 0 if the machine was suspended, because their times cannot be compared then.
    all.retain(|&(from, _)| from != 0);
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "held by two at once: {all:?}");
    tokens
}

/// Acquires `lock` in the store at `url`.
pub(crate) async fn acquired(url: &str) -> Guard {
    let lock = Locker::open(url).await.unwrap().lock("lock");
    within("a grant", lock.acquire()).await.unwrap()
}

/// Returns the result of a process that prints `word` and ends with `code`.
pub(crate) fn says(word: &str, code: i32) -> (Vec<String>, Option<i32>) {
    (vec![word.to_owned()], Some(code))
}

/// Asserts that our client takes over when the lease of their client is over, and vice versa. `theirs` starts their
/// client with a verb and a ttl in seconds. `ttls` are those of their holder and of ours. Our holder uses the store
/// at `url_of_ours`.
pub(crate) async fn each_takes_over_when_the_other_has_died(
    url: &str,
    url_of_ours: &str,
    ttls: [&str; 2],
    theirs: impl Fn(&str, &str) -> Process,
) {
    let mut holder = theirs("hold", ttls[0]);
    holder.says("granted").await;
    holder.kill().await;
    acquired(url).await.release().await.unwrap();
    let mut ours = Worker::start("hold", url_of_ours, "lock", &["--ttl", ttls[1]]);
    ours.granted().await;
    ours.kill().await;
    let mut next = theirs("hold", "60");
    next.says("granted").await;
    assert_eq!(next.end().await, says("released", 0));
}
