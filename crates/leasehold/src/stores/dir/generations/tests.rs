//! Every order of the steps of several writers, on a directory that fails as file servers and their clients do.
//!
//! A client is a program that reads and writes the key. After each of its operations, it runs again from the start of
//! its round, with the answers to the operations so far, until it asks for the next one. So the whole state of a world
//! is data, and the search visits each state once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::*;
use crate::random::Random;

const HOUR: u64 = 3_600_000_000;

/// The limits for one newer generation instead of 16, so that few writes suffice.
const SMALL: Limits = Limits { newer: 1, ..LIMITS };

/// What the world may do, in addition to any order of the clients' steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Faults {
    /// How often a listing may be out of date. It is never older than the client's own latest change of the folder.
    stale: u8,
    /// How often a link or a removal may have no response, or, for a link, the response to a repetition.
    lost: u8,
    /// How often two hours may pass. A client may sleep meanwhile, between any two steps.
    hours: u8,
    /// How often the file server's clock may jump by two hours, or all clients be suspended without noticing it.
    jumps: u8,
    /// How often the disk may be full when a file is created. The name of the file and a part of its content exist.
    full: u8,
    /// How often somebody removes the highest generation, against rule 1.
    sweeps: u8,
    /// Whether a listing may be older than the client's own latest change, against what clients of NFS do. It is then
    /// at most an hour old.
    forgets_own_changes: bool,
}

/// An operation on files.
#[derive(Clone, Debug, Hash)]
enum Ask {
    List,
    Read(String),
    Create(String, Vec<u8>),
    Link(String, String),
    Sync,
    Remove(String),
    Make,
    Stamp(String),
    Now,
}

type Answered<T> = Result<T, io::ErrorKind>;

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Names(Answered<Vec<String>>),
    Content(Answered<Vec<u8>>),
    Number(Answered<u64>),
    Done(Answered<()>),
}

/// What a client has learnt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Learnt {
    /// It read this generation with this nonce.
    Saw(u64, String),
    Wrote(u64, String),
    /// Its write with this nonce certainly had no effect.
    Refused(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct File {
    content: Rc<Vec<u8>>,
    /// When its names last changed.
    stamp_us: u64,
}

#[derive(Clone, Hash)]
struct World {
    exists: bool,
    files: BTreeMap<String, File>,
    /// The highest generation at the latest `fsync` of the folder.
    durable: Option<u64>,
    /// The listings that a client may still get, oldest first.
    listings: Vec<Vec<u64>>,
    /// Links that were sent and may still be executed.
    late: Vec<(File, String)>,
    server_us: u64,
    time_us: u64,
    clients: Vec<Client>,
    learnt: BTreeSet<Learnt>,
    faults: Faults,
}

#[derive(Clone, Hash)]
struct Client {
    /// How often it still reads and writes.
    rounds: u8,
    /// The answers in this round.
    log: Vec<Answer>,
    /// The operation that it waits for. `None` if it has ended.
    asks: Option<Ask>,
    /// The listing at its latest change of the folder.
    since: usize,
}

/// A folder that answers from a log, and notes the first operation that is not in it.
struct Replay<'a> {
    log: &'a [Answer],
    next: Cell<usize>,
    asks: RefCell<Option<Ask>>,
}

impl Replay<'_> {
    fn ask(&self, ask: Ask) -> Answer {
        let next = self.next.replace(self.next.get() + 1);
        if let Some(answer) = self.log.get(next) {
            return answer.clone();
        }
        // The program goes on with an error until it ends. None of what it asks or learns from now on counts.
        let answer = match &ask {
            Ask::List => Answer::Names(Err(io::ErrorKind::Interrupted)),
            Ask::Read(_) => Answer::Content(Err(io::ErrorKind::Interrupted)),
            Ask::Create(..) | Ask::Stamp(_) => Answer::Number(Err(io::ErrorKind::Interrupted)),
            Ask::Now => Answer::Number(Ok(0)),
            _ => Answer::Done(Err(io::ErrorKind::Interrupted)),
        };
        self.asks.borrow_mut().get_or_insert(ask);
        answer
    }

    fn done(&self, ask: Ask) -> io::Result<()> {
        let Answer::Done(answer) = self.ask(ask) else { panic!("the program is not deterministic") };
        answer.map_err(io::Error::from)
    }

    fn number(&self, ask: Ask) -> io::Result<u64> {
        let Answer::Number(answer) = self.ask(ask) else { panic!("the program is not deterministic") };
        answer.map_err(io::Error::from)
    }
}

impl Folder for Replay<'_> {
    fn list(&self) -> io::Result<Vec<String>> {
        let Answer::Names(names) = self.ask(Ask::List) else { panic!("the program is not deterministic") };
        names.map_err(io::Error::from)
    }
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let Answer::Content(content) = self.ask(Ask::Read(name.to_owned())) else {
            panic!("the program is not deterministic")
        };
        content.map_err(io::Error::from)
    }
    fn read_beginning(&self, name: &str) -> io::Result<(Vec<u8>, u64)> {
        let content = self.read(name)?;
        let bytes = content.len() as u64;
        Ok((content, bytes))
    }
    fn make(&self) -> io::Result<()> {
        self.done(Ask::Make)
    }
    fn create(&self, name: &str, header: &[u8], value: &[u8]) -> io::Result<u64> {
        self.number(Ask::Create(name.to_owned(), [header, value].concat()))
    }
    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.done(Ask::Link(from.to_owned(), to.to_owned()))
    }
    fn sync(&self) -> io::Result<()> {
        self.done(Ask::Sync)
    }
    fn stamp(&self, name: &str) -> io::Result<u64> {
        self.number(Ask::Stamp(name.to_owned()))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.done(Ask::Remove(name.to_owned()))
    }
    fn now(&self) -> Moment {
        let us = self.number(Ask::Now).unwrap();
        Moment::from_raw(us * 1_000, us as i64 * 1_000)
    }
    fn fault(&self, what: &str, error: &io::Error) -> Fault {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::InvalidData => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        };
        Fault::new(kind, format!("cannot {what}: {error}"))
    }
}

/// Runs one round of a program: it reads the key and writes over what it read. Returns what it has learnt by its end,
/// or the next operation.
fn run(log: &[Answer], nonce: Id, limits: &Limits) -> Result<Vec<Learnt>, Ask> {
    let folder = Replay { log, next: Cell::new(0), asks: RefCell::new(None) };
    let current = read(&folder);
    let mut learnt = Vec::new();
    if let Ok(current) = current {
        let current = current.map(|(latest, _)| latest);
        let saw = current.as_ref().map(|latest| Learnt::Saw(latest.number, latest.nonce.to_string()));
        learnt.extend(saw);
        let expect = current.filter(|latest| latest.length.is_some()).map(|found| found.version());
        match write(&folder, limits, expect.as_ref(), nonce, Some("value".into())) {
            Ok(Outcome::Written(version)) => {
                let (number, nonce) = version.as_str().split_once('-').unwrap();
                learnt.push(Learnt::Wrote(number.parse().unwrap(), nonce.to_owned()));
            }
            Ok(Outcome::Conflict) | Err(StoreError::NotApplied(_)) => {
                learnt.push(Learnt::Refused(nonce.to_string()))
            }
            Err(StoreError::MaybeApplied(_)) => {}
        }
    }
    folder.asks.into_inner().map_or(Ok(learnt), Err)
}

impl World {
    fn new(rounds: &[u8], faults: Faults) -> Self {
        let client = |&rounds| Client { rounds, log: Vec::new(), asks: Some(Ask::Now), since: 0 };
        Self {
            exists: false,
            files: BTreeMap::new(),
            durable: None,
            listings: vec![Vec::new()],
            late: Vec::new(),
            server_us: 1_000 * HOUR,
            time_us: HOUR,
            clients: rounds.iter().map(client).collect(),
            learnt: BTreeSet::new(),
            faults,
        }
    }

    /// Lets client `n` go on until its next operation.
    fn go_on(&mut self, n: usize, limits: &Limits) {
        let client = &mut self.clients[n];
        client.asks = None;
        while client.asks.is_none() && client.rounds > 0 {
            // Each round of each client has its own nonce.
            let nonce = Id::random(&Random::seeded(100 * n as u64 + u64::from(client.rounds)));
            match run(&client.log, nonce, limits) {
                Ok(learnt) => {
                    client.rounds -= 1;
                    client.log.clear();
                    self.learnt.extend(learnt);
                }
                Err(ask) => client.asks = Some(ask),
            }
        }
        let oldest =
            self.clients.iter().filter(|client| client.asks.is_some()).map(|client| client.since).min();
        if !self.faults.forgets_own_changes {
            let outdated = oldest.unwrap_or(self.listings.len() - 1);
            self.listings.drain(..outdated);
            self.clients.iter_mut().for_each(|client| client.since = client.since.saturating_sub(outdated));
        }
    }

    fn generations(&self) -> Vec<u64> {
        self.files.keys().filter_map(|name| number(name)).collect()
    }

    /// Records a change of the folder by client `n`.
    fn changed(&mut self, n: Option<usize>) {
        let now = self.generations();
        if self.listings.last() != Some(&now) {
            self.listings.push(now);
        }
        if let Some(n) = n {
            self.clients[n].since = self.listings.len() - 1;
        }
    }

    /// Sets the time stamp of all names of `file`.
    fn renamed(&mut self, file: &File) {
        let same = self.files.values_mut().filter(|named| named.content == file.content);
        same.for_each(|named| named.stamp_us = self.server_us);
    }

    fn link(&mut self, file: File, to: &str, n: Option<usize>) -> Answered<()> {
        if self.files.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists);
        }
        self.files.insert(to.to_owned(), file.clone());
        self.renamed(&file);
        self.changed(n);
        Ok(())
    }

    /// Returns the answer to a listing of `generations`.
    fn listed(&self, generations: &[u64]) -> Answer {
        // Files of clients that run need not be listed: nobody removes them.
        let left = self.files.iter().filter(|(name, file)| {
            name.ends_with(TEMPORARY) && file.stamp_us + LIMITS.temporary_age_us <= self.server_us
        });
        let names = generations.iter().map(|&number| name(number)).chain(left.map(|(name, _)| name.clone()));
        Answer::Names(if self.exists { Ok(names.collect()) } else { Err(io::ErrorKind::NotFound) })
    }

    /// Returns the worlds after the operation of client `n`.
    fn after(&self, n: usize) -> Vec<Self> {
        let mut worlds = Vec::new();
        let mut add = |mut world: Self, answer: Answer| {
            world.clients[n].log.push(answer);
            worlds.push(world);
        };
        let missing = io::ErrorKind::NotFound;
        let mut same = self.clone();
        match self.clients[n].asks.clone() {
            None => {}
            Some(Ask::List) => {
                let since = if self.faults.forgets_own_changes { 0 } else { self.clients[n].since };
                let mut listings = self.listings[since..].iter().rev();
                let current = listings.next().unwrap();
                add(same, self.listed(current));
                if self.exists && self.faults.stale > 0 {
                    for listing in
                        listings.collect::<HashSet<_>>().into_iter().filter(|listing| *listing != current)
                    {
                        let mut stale = self.clone();
                        stale.faults.stale -= 1;
                        add(stale, self.listed(listing));
                    }
                }
            }
            Some(Ask::Read(name)) => {
                add(
                    same,
                    Answer::Content(self.files.get(&name).map(|file| file.content.to_vec()).ok_or(missing)),
                );
            }
            Some(Ask::Stamp(name)) => {
                add(same, Answer::Number(self.files.get(&name).map(|file| file.stamp_us).ok_or(missing)));
            }
            Some(Ask::Now) => add(same, Answer::Number(Ok(self.time_us))),
            Some(Ask::Make) => {
                same.exists = true;
                add(same, Answer::Done(Ok(())));
            }
            Some(Ask::Create(name, content)) => {
                if self.faults.full > 0 {
                    let mut full = self.clone();
                    full.faults.full -= 1;
                    let part = content[..content.len() - 1].to_vec();
                    full.files
                        .insert(name.clone(), File { content: Rc::new(part), stamp_us: self.server_us });
                    full.changed(Some(n));
                    add(full, Answer::Number(Err(io::ErrorKind::StorageFull)));
                }
                same.files.insert(name, File { content: Rc::new(content), stamp_us: self.server_us });
                same.changed(Some(n));
                add(same, Answer::Number(Ok(self.server_us)));
            }
            Some(Ask::Link(from, to)) => {
                let Some(file) = self.files.get(&from).cloned() else {
                    add(same, Answer::Done(Err(missing)));
                    return worlds;
                };
                if self.faults.lost > 0 {
                    let mut late = self.clone();
                    late.faults.lost -= 1;
                    late.late.push((file.clone(), to.clone()));
                    add(late, Answer::Done(Err(io::ErrorKind::TimedOut)));
                }
                let answer = same.link(file, &to, Some(n));
                if self.faults.lost > 0 {
                    let mut lost = same.clone();
                    lost.faults.lost -= 1;
                    add(lost.clone(), Answer::Done(Err(io::ErrorKind::TimedOut)));
                    add(lost, Answer::Done(Err(io::ErrorKind::AlreadyExists)));
                }
                add(same, Answer::Done(answer));
            }
            Some(Ask::Sync) => {
                same.durable = self.generations().into_iter().max();
                add(same, Answer::Done(Ok(())));
            }
            Some(Ask::Remove(name)) => {
                if self.faults.lost > 0 && name.ends_with(TEMPORARY) {
                    let mut lost = self.clone();
                    lost.faults.lost -= 1;
                    add(lost, Answer::Done(Err(io::ErrorKind::TimedOut)));
                }
                let removed = same.files.remove(&name).ok_or(missing);
                removed.iter().for_each(|file| same.renamed(file));
                same.changed(Some(n));
                add(same, Answer::Done(removed.map(drop)));
            }
        }
        worlds
    }

    /// Returns the worlds after something that no client does.
    fn after_time(&self) -> Vec<Self> {
        let mut worlds = Vec::new();
        for at in 0..self.late.len() {
            let mut world = self.clone();
            let (file, to) = world.late.remove(at);
            // A file that has no name any more is gone.
            if world.files.values().any(|named| named.content == file.content) {
                let _ = world.link(file, &to, None);
            }
            worlds.push(world);
        }
        if self.faults.hours > 0 {
            let mut world = self.clone();
            world.faults.hours -= 1;
            world.time_us += 2 * HOUR;
            world.server_us += 2 * HOUR;
            if self.faults.forgets_own_changes {
                world.listings.drain(..self.listings.len() - 1);
                world.clients.iter_mut().for_each(|client| client.since = 0);
            }
            worlds.push(world);
        }
        if let Some(highest) = self.generations().last().filter(|_| self.faults.sweeps > 0) {
            let mut world = self.clone();
            world.faults.sweeps -= 1;
            world.files.remove(&name(*highest));
            world.changed(None);
            worlds.push(world);
        }
        if self.faults.jumps > 0 {
            let mut world = self.clone();
            world.faults.jumps -= 1;
            world.server_us += 2 * HOUR;
            worlds.push(world);
        }
        worlds
    }

    /// Returns what is wrong with what the clients have learnt.
    fn flaw(&self) -> Option<String> {
        let mut values = BTreeMap::new();
        for one in &self.learnt {
            match one {
                Learnt::Saw(number, nonce) | Learnt::Wrote(number, nonce) => {
                    if values.insert(number, nonce).is_some_and(|other| other != nonce) {
                        return Some(format!("generation {number} has two values"));
                    }
                    if let Learnt::Wrote(..) = one
                        && (self.generations().last() < Some(number) || self.durable.as_ref() < Some(number))
                    {
                        return Some(format!(
                            "generation {number} is lost, or would be lost in a power failure"
                        ));
                    }
                }
                Learnt::Refused(nonce) => {
                    if values.values().any(|seen| *seen == nonce) {
                        return Some("a write that was refused has an effect".to_owned());
                    }
                }
            }
        }
        None
    }
}

/// Visits every state of a world. Returns the number of states, or the first flaw.
fn search(rounds: &[u8], faults: Faults, limits: Limits) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut start = World::new(rounds, faults);
    (0..rounds.len()).for_each(|n| start.go_on(n, &limits));
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        if !seen.insert(hasher.finish()) {
            continue;
        }
        if let Some(flaw) = world.flaw() {
            return Err(flaw);
        }
        // What no other client notices needs no other order.
        let own = |client: &Client| match &client.asks {
            Some(Ask::Now | Ask::Stamp(_) | Ask::Make | Ask::Create(..) | Ask::Sync) => true,
            Some(Ask::Remove(name)) => name.ends_with(TEMPORARY) && world.late.is_empty(),
            Some(Ask::Read(_)) => faults.hours + faults.jumps == 0,
            _ => false,
        };
        let next = match world.clients.iter().position(own) {
            Some(n) => n..n + 1,
            None => 0..rounds.len(),
        };
        if next.len() > 1 && world.clients.iter().any(|client| client.asks.is_some()) {
            open.extend(world.after_time());
        }
        for n in next {
            let after = world.after(n).into_iter();
            open.extend(after.map(|mut world| {
                world.go_on(n, &limits);
                world
            }));
        }
    }
    Ok(seen.len())
}

fn assert_safe(rounds: &[u8], faults: Faults, limits: Limits) {
    match search(rounds, faults, limits) {
        Ok(states) => println!("{rounds:?} {faults:?}: {states} states"),
        Err(flaw) => panic!("{rounds:?} {faults:?}: {flaw}"),
    }
}

const NONE: Faults =
    Faults { stale: 0, lost: 0, hours: 0, jumps: 0, full: 0, sweeps: 0, forgets_own_changes: false };

#[test]
fn one_of_several_writers_succeeds_in_every_order() {
    assert_safe(&[1, 1, 1], NONE, SMALL);
    assert_safe(&[1, 1], Faults { stale: 2, lost: 2, ..NONE }, SMALL);
    assert_safe(&[2, 1], Faults { stale: 1, lost: 1, ..NONE }, SMALL);
}

/// One client sleeps between any two steps, while the other writes and removes what the first has read.
#[test]
fn a_writer_that_slept_overwrites_nothing() {
    assert_safe(&[1, 3], Faults { hours: 1, stale: 1, ..NONE }, SMALL);
    assert_safe(&[1, 3], Faults { jumps: 1, ..NONE }, SMALL);
    assert_safe(&[1, 2], Faults { hours: 1, lost: 1, ..NONE }, SMALL);
}

/// If a client does not notice even its own changes, the age of what is removed suffices, as long as clocks are right.
const FORGETFUL: Faults = Faults { hours: 1, stale: 1, forgets_own_changes: true, ..NONE };

#[test]
fn a_writer_with_outdated_listings_overwrites_nothing() {
    assert_safe(&[1, 3], FORGETFUL, SMALL);
}

#[test]
fn a_writer_that_makes_room_removes_nothing_that_is_needed() {
    assert_safe(&[1, 3], Faults { hours: 1, full: 1, ..NONE }, SMALL);
    assert_safe(&[1, 2], Faults { full: 1, ..FORGETFUL }, SMALL);
}

/// Otherwise the disk would stay full of what the next write would remove.
#[test]
fn a_write_that_finds_the_disk_full_makes_room() {
    let mut world = World::new(&[4], Faults { full: 1, ..NONE });
    world.go_on(0, &SMALL);
    while world.clients[0].asks.is_some() {
        let is_last = world.clients[0].rounds == 1;
        if is_last && world.clients[0].log.is_empty() {
            assert_eq!(world.generations(), [1, 2, 3], "they are young");
            world.time_us += 2 * HOUR;
            world.server_us += 2 * HOUR;
        }
        let mut after = world.after(0);
        world = if is_last { after.swap_remove(0) } else { after.pop().unwrap() };
        world.go_on(0, &SMALL);
    }
    assert_eq!(world.faults.full, 0);
    assert_eq!((world.generations(), world.files.len()), (vec![3], 1));
}

/// Each rule is needed: without it, the search finds a flaw.
#[test]
fn without_a_rule_there_is_a_flaw() {
    let suspended = Faults { hours: 0, jumps: 1, ..FORGETFUL };
    for (rule, faults, limits) in [
        ("1: the highest generation stays", Faults { sweeps: 1, ..NONE }, SMALL),
        ("2: what is removed is old", FORGETFUL, Limits { age_us: 0, ..SMALL }),
        ("2: temporary files are removed first", FORGETFUL, Limits { temporary_age_us: u64::MAX, ..SMALL }),
        ("3: a write is quick", FORGETFUL, Limits { longest_write: Duration::MAX, ..SMALL }),
        ("3: the listing after it shows no higher generation", suspended, SMALL),
    ] {
        let found = search(&[1, 3], faults, limits);
        println!("without rule {rule}: {found:?}");
        assert!(found.is_err(), "without rule {rule}");
    }
}

proptest::proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(
        number in 1_u64..u64::MAX,
        kind in proptest::option::of(".{0,40}"),
        user in proptest::collection::btree_map(".{1,20}", ".{0,40}", 0..4),
        value in proptest::option::of(".{0,40}"),
    ) {
        let metadata = match value {
            Some(_) => Metadata { content_type: kind, user, ..Metadata::default() },
            None => Metadata::default(),
        };
        let (nonce, length) = (Id::random(&Random::seeded(number)), value.as_ref().map(|text| text.len() as u64));
        let written = Generation { number, nonce, length, metadata };
        let header = written.header();
        let file = [header.as_bytes(), value.unwrap_or_default().as_bytes()].concat();
        proptest::prop_assert_eq!(
            Generation::parse(number, &file, file.len() as u64),
            Some((written, header.len()))
        );
    }
}
