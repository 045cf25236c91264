//! A small service of three processes. One of them leads and does the work, and the others follow it. The example
//! starts itself as these processes. It kills the leader, restarts it, and then asks the next leader to exit.
//!
//! ```text
//! cargo run --example election                                      # SQLite: the next one leads at once
//! cargo run --features s3 --example election -- 's3://bucket/locks?region=eu-west-1'   # after its lease
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::{Election, Error, Leadership, Locker, Result};

fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("leasehold-election-{}.db", std::process::id()));
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", scratch.display()));
    match std::env::var("MEMBER") {
        Ok(name) => tokio::runtime::Runtime::new().map_err(failed)?.block_on(serve(&url, &name)),
        Err(_) => play(&url),
    }
}

/// Runs one process of the service until its stdin is closed.
async fn serve(url: &str, name: &str) -> Result<()> {
    let locker = Locker::open(url).await?;
    let address = format!("http://{name}.example:8080");
    let election = locker.election("examples/election").ttl(Duration::from_secs(5)).value(&address);
    let follower = tokio::spawn(follow(election.clone(), name.to_owned(), address));
    let asked_to_end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    tokio::pin!(asked_to_end);
    loop {
        let leadership = tokio::select! {
            leadership = election.campaign() => leadership?,
            _ = &mut asked_to_end => break,
        };
        println!("{name} leads, term {}", leadership.term()?);
        tokio::select! {
            loss = leadership.lost() => println!("{name}: {loss}"),
            () = work(&leadership, &locker) => {}
            _ = &mut asked_to_end => {
                // The work has ended, so it is safe to resign. The next candidate then leads at once, not only when the
                // lease ends.
                leadership.resign().await?;
                println!("{name} has resigned");
                break;
            }
        }
    }
    follower.abort();
    Ok(())
}

/// The work of the leader. The future is dropped when the leadership ends.
async fn work(leadership: &Leadership, locker: &Locker) {
    while leadership.check().is_ok() {
        // One step of the work. A real leader sends its term with each write, so that the resource can refuse earlier
        // leaders.
        locker.store().env().sleep(Duration::from_millis(50)).await;
    }
}

/// Follows the leader. A real follower sends its requests to the leader's address.
async fn follow(election: Election, name: String, own: String) {
    let mut changes = election.observe();
    while let Some(change) = changes.next().await {
        match change {
            Ok(Some(leader)) if leader.value.as_ref() != Some(&own) => {
                println!("{name} follows {}", leader.value.unwrap_or_default());
            }
            Ok(_) => {}
            Err(error) => println!("{name} does not know the leader: {error}"),
        }
    }
}

/// Starts the processes and checks which one leads.
fn play(url: &str) -> Result<()> {
    let (said, lines) = channel();
    let mut members = BTreeMap::new();
    for name in ["one", "two", "three"] {
        members.insert(name.to_owned(), start(url, name, &said)?);
    }
    let mut seen = Seen { lines, leader: None, follows: BTreeMap::new() };
    let first = seen.led_by_another_than(None, 2)?;
    kill(members.remove(&first).ok_or_else(|| failed("no process leads"))?)?;
    println!("-- {first} was killed");
    let second = seen.led_by_another_than(Some(&first), 1)?;
    println!("-- {first} is started again");
    members.insert(first.clone(), start(url, &first, &said)?);
    seen.led_by_another_than(Some(&first), 2)?;
    println!("-- {second} is asked to end");
    let mut ending = members.remove(&second).ok_or_else(|| failed("no process leads"))?;
    drop(ending.stdin.take());
    seen.led_by_another_than(Some(&second), 1)?;
    ending.wait().map_err(failed)?;
    members.into_values().try_for_each(kill)?;
    println!("one process led at a time, and the others knew which");
    Ok(())
}

/// The state that the output of the processes shows.
struct Seen {
    lines: Receiver<String>,
    leader: Option<String>,
    follows: BTreeMap<String, String>,
}

impl Seen {
    /// Waits until a process other than `before` leads and `followers` processes follow it.
    fn led_by_another_than(&mut self, before: Option<&str>, followers: usize) -> Result<String> {
        loop {
            if let Some(leader) = self.leader.clone().filter(|leader| before != Some(leader)) {
                let address = format!("http://{leader}.example:8080");
                if self.follows.values().filter(|followed| **followed == address).count() == followers {
                    return Ok(leader);
                }
            }
            let line = self.lines.recv().map_err(failed)?;
            println!("{line}");
            match line.split(' ').collect::<Vec<_>>()[..] {
                [member, "leads,", ..] => {
                    self.leader = Some(member.to_owned());
                    self.follows.remove(member);
                }
                [member, "follows", leader] => {
                    self.follows.insert(member.to_owned(), leader.to_owned());
                }
                _ => {}
            }
        }
    }
}

fn start(url: &str, name: &str, said: &Sender<String>) -> Result<Child> {
    let mut process = Command::new(std::env::current_exe().map_err(failed)?)
        .arg(url)
        .env("MEMBER", name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let output = process.stdout.take().ok_or_else(|| failed("no output"))?;
    let said = said.clone();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(std::result::Result::ok);
        lines.for_each(|line| drop(said.send(line)));
    });
    Ok(process)
}

/// `kill -9`: the leader does not resign.
fn kill(mut process: Child) -> Result<()> {
    process.kill().and_then(|()| process.wait()).map(drop).map_err(failed)
}

fn failed(error: impl ToString) -> Error {
    Error::invalid(error.to_string())
}
