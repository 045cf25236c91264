//! Requests to the backend, on stores in memory and with paused time.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::{Error, ErrorKind, Locker, Object, RegisterLeases};

use super::*;
use crate::feed::paused_store;
use crate::unreliable::Unreliable;

const TTL: Duration = Duration::from_secs(30);
const RESERVE: Duration = Duration::from_secs(11);
const NAME: &str = "prod";

/// The store of locks and states, which commands of several machines share.
struct World {
    locker: Locker,
    register: Arc<Unreliable>,
}

/// A command with its backend. Its supervision acts at once.
struct Command {
    backend: Arc<StateBackend>,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl World {
    async fn new() -> Self {
        let locker = paused_store().await;
        let register = Unreliable::new(locker.store().env().clone());
        Self { locker, register }
    }

    /// Creates a world whose locks and states are in one store, which may be down.
    fn of_one_store() -> Self {
        let mut options = StoreOptions::default();
        options.env = Env::seeded(Arc::new(TestClock::default()), 1);
        let register = Unreliable::new(options.env.clone());
        Self { locker: Locker::new(Arc::new(RegisterLeases::new(register.clone(), options))), register }
    }

    fn is_down(&self, is_down: bool) {
        self.register.is_down.store(is_down, Ordering::SeqCst);
    }

    fn object(&self) -> Object {
        Object::new(self.register.clone(), "prod.tfstate")
    }

    async fn stored(&self) -> Option<Vec<u8>> {
        let found = self.object().read().await.unwrap()?;
        Some(found.value.trim_ascii_end().to_vec())
    }

    async fn evict(&self) {
        let name = leasehold::LockName::new(NAME).unwrap();
        let token = self.locker.inspect(&name).await.unwrap().token.unwrap();
        self.locker.evict(&name, token).await.unwrap();
    }

    fn unsupervised(&self, words: &[&str]) -> Command {
        let lock = self.locker.lock(NAME).ttl(TTL);
        let acquire: Acquire = Box::new(move |note| {
            let lock = lock.clone().note(note);
            Box::pin(async move { lock.try_acquire().await })
        });
        let warnings = Arc::<Mutex<Vec<String>>>::default();
        let warn: Warn = Box::new({
            let warnings = warnings.clone();
            move |message| warnings.lock().unwrap().push(message.to_owned())
        });
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let name = leasehold::LockName::new(NAME).unwrap();
        let object = self.object();
        let backend = StateBackend::new(self.locker.clone(), name, object, words, acquire, warn, RESERVE);
        Command { backend, warnings }
    }

    fn command(&self, words: &[&str]) -> Command {
        let command = self.unsupervised(words);
        command.supervise();
        command
    }
}

impl Command {
    fn supervise(&self) {
        let backend = self.backend.clone();
        tokio::spawn(async move {
            loop {
                backend.remaining();
                backend.changed().await;
            }
        });
    }

    async fn lock(&self, id: &str) -> Answer {
        self.backend.handle(Asked::Lock(info(id))).await
    }

    async fn unlock(&self, id: &str) -> Answer {
        self.backend.handle(Asked::Unlock(info(id))).await
    }

    async fn write(&self, id: &str, state: &'static str) -> Answer {
        self.backend.handle(Asked::Write { id: Some(id.to_owned()), state: state.into() }).await
    }

    /// Returns the state without the mark of its token.
    async fn read(&self) -> Option<String> {
        let Answer::State(state) = self.backend.handle(Asked::Read).await else { panic!("no state") };
        state.map(|state| String::from_utf8(state.trim_ascii_end().to_vec()).unwrap())
    }
}

fn info(id: &str) -> Bytes {
    let json = serde_json::json!({
        "ID": id,
        "Operation": "OperationTypeApply",
        "Info": "",
        "Who": "maria@ci-7",
        "Version": "1.9.0",
        "Created": "2026-11-28T23:30:00.5Z",
        "Path": "",
    });
    json.to_string().into()
}

#[track_caller]
fn refusal(answer: Answer) -> String {
    let Answer::Refused(why) = answer else { panic!("{answer:?}") };
    why
}

#[tokio::test(start_paused = true)]
async fn a_state_is_read_and_written_under_its_lock() {
    let world = World::new().await;
    let first = world.command(&[]);
    assert_eq!(first.lock("1").await, Answer::Done);
    assert_eq!(first.read().await, None);
    assert_eq!(first.write("1", r#"{"serial":1}"#).await, Answer::Done);
    assert_eq!(first.write("1", r#"{"serial":2}"#).await, Answer::Done);
    assert_eq!(first.unlock("1").await, Answer::Done);

    let second = world.command(&[]);
    assert_eq!(second.lock("2").await, Answer::Done);
    assert_eq!(second.read().await.as_deref(), Some(r#"{"serial":2}"#));
    let Answer::State(Some(state)) = second.backend.handle(Asked::Read).await else { panic!("no state") };
    let json: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(json["serial"], 2, "it is JSON in spite of the mark");
    assert_eq!(second.unlock("2").await, Answer::Done);
    let left = first.backend.close().await;
    assert!(left.guard.is_none() && left.loss.is_none() && left.was_asked && !left.was_unused);
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_a_request_for_the_state_is_noticed() {
    let world = World::new().await;
    assert!(!world.command(&[]).backend.close().await.was_asked);
    for is_released in [true, false] {
        let command = world.command(&[]);
        // A read before the lock is none under it.
        assert_eq!(command.read().await, None);
        assert_eq!(command.lock("1").await, Answer::Done);
        if is_released {
            assert_eq!(command.unlock("1").await, Answer::Done);
            assert_eq!(command.lock("2").await, Answer::Done);
            assert_eq!(command.read().await, None);
        }
        let left = command.backend.close().await;
        assert!(left.was_asked && left.was_unused);
        left.guard.unwrap().release().await.unwrap();
    }
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    assert_eq!(command.write("1", "{}").await, Answer::Done);
    assert!(!command.backend.close().await.was_unused);
}

#[tokio::test(start_paused = true)]
async fn a_second_lock_gets_the_description_of_the_first() {
    let world = World::new().await;
    let (first, second) = (world.command(&[]), world.command(&[]));
    assert_eq!(first.lock("1").await, Answer::Done);
    for command in [&first, &second] {
        let Answer::Locked(json) = command.lock("2").await else { panic!("it is not locked") };
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for (key, value) in [
            ("ID", "1"),
            ("Operation", "OperationTypeApply"),
            ("Who", "maria@ci-7"),
            ("Created", "2026-11-28T23:30:00.5Z"),
        ] {
            assert_eq!(json[key], value, "{json}");
        }
    }
    let Answer::Locked(json) = second.lock("2").await else { panic!("it is not locked") };
    assert!(json.contains("token ") && json.contains("lease ends in <= "), "{json}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_no_terraform_is_described() {
    let world = World::new().await;
    let guard = world.locker.lock(NAME).note("make deploy").owner("ops").acquire().await.unwrap();
    let Answer::Locked(json) = world.command(&[]).lock("2").await else { panic!("it is not locked") };
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["ID"], guard.token().unwrap().to_string());
    assert_eq!(json["Operation"], "make deploy");
    assert!(json["Who"].as_str().unwrap().starts_with("ops@"), "{json}");
    assert!(humantime::parse_rfc3339(json["Created"].as_str().unwrap()).is_ok(), "{json}");
}

/// The fence: nothing else would refuse this write, because the state was not read under the lock.
#[tokio::test(start_paused = true)]
async fn a_write_after_one_with_a_higher_token_is_refused() {
    let world = World::new().await;
    let paused = world.command(&[]);
    assert_eq!(paused.lock("1").await, Answer::Done);
    let later = leasehold::Token::new((1 << 53) - 1).unwrap();
    world.object().write_fenced(later, "{}").await.unwrap();
    let why = refusal(paused.write("1", r#"{"late":1}"#).await);
    assert!(why.contains("higher than"), "{why}");
    assert_eq!(world.stored().await.unwrap(), b"{}");
    assert_eq!(*paused.warnings.lock().unwrap(), [why], "Terraform shows only a number");
}

/// A late write of an earlier holder can arrive between a read and the first write of the next one. It must not vanish.
#[tokio::test(start_paused = true)]
async fn a_state_that_changed_since_it_was_read_is_not_replaced() {
    let world = World::new().await;
    let earlier = leasehold::Token::new(1).unwrap();
    let next = world.command(&[]);
    assert_eq!(next.lock("1").await, Answer::Done);
    assert_eq!(next.read().await, None);
    world.object().write_fenced(earlier, r#"{"late":1}"#).await.unwrap();
    let why = refusal(next.write("1", "{}").await);
    assert!(why.contains("another process has written"), "{why}");
    assert_eq!(world.stored().await.unwrap(), br#"{"late":1}"#);
    // Terraform reads a new state again just before its first write. This must not let the late state vanish.
    let why = refusal(next.backend.handle(Asked::Read).await);
    assert!(why.contains("another process has written"), "{why}");
    refusal(next.write("1", "{}").await);
    assert_eq!(next.unlock("1").await, Answer::Done);
    // Under another lock, it can be replaced.
    assert_eq!(next.lock("2").await, Answer::Done);
    assert_eq!(next.read().await.as_deref(), Some(r#"{"late":1}"#));
    assert_eq!(next.write("2", "{}").await, Answer::Done);
    assert_eq!(next.read().await.as_deref(), Some("{}"), "its own write is no change");
    assert_eq!(next.write("2", r#"{"a":1}"#).await, Answer::Done);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_writes_nothing() {
    let world = World::new().await;
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    assert!(command.backend.remaining() <= TTL);
    world.evict().await;
    command.backend.lost().await;
    assert_eq!(command.backend.remaining(), Duration::ZERO);
    refusal(command.write("1", "{}").await);
    assert_eq!(world.stored().await, None);
    let left = command.backend.close().await;
    assert!(left.guard.is_some_and(|guard| guard.check().is_err()));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_used_only_when_the_supervision_knows_of_it() {
    let world = World::new().await;
    let command = world.unsupervised(&[]);
    let backend = command.backend.clone();
    assert!(backend.remaining() > TTL * 1_000, "without a lock, the command may run");
    let locking = tokio::spawn(async move { backend.handle(Asked::Lock(info("1"))).await });
    world.locker.store().env().sleep(TTL / 3).await;
    assert!(!locking.is_finished(), "nobody would stop the command in time");
    // The supervision calls both in turn. At first it acts on the time before the grant.
    command.backend.changed().await;
    assert!(!locking.is_finished());
    assert!(command.backend.remaining() <= TTL);
    command.supervise();
    assert_eq!(locking.await.unwrap(), Answer::Done);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_before_its_use_is_not_used() {
    let world = World::new().await;
    let command = world.unsupervised(&[]);
    let backend = command.backend.clone();
    let locking = tokio::spawn(async move { backend.handle(Asked::Lock(info("1"))).await });
    world.locker.store().env().sleep(TTL / 10).await;
    world.evict().await;
    command.backend.lost().await;
    command.supervise();
    assert!(matches!(locking.await.unwrap(), Answer::Invalid(why) if why.contains("was lost")));
}

/// Terraform repeats a request whose connection has ended. The first one must not be half done then.
#[tokio::test(start_paused = true)]
async fn a_request_is_finished_without_its_connection() {
    let world = World::new().await;
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    assert!(command.write("1", "{}").now_or_never().is_none());
    world.locker.store().env().sleep(Duration::from_secs(1)).await;
    assert_eq!(world.stored().await.unwrap(), b"{}");
}

/// Terraform saves the state in a file only if it gets a response before it is killed.
#[tokio::test(start_paused = true)]
async fn without_the_store_a_request_is_refused_before_the_stop() {
    for reads in [false, true] {
        let world = World::of_one_store();
        let command = world.command(&[]);
        assert_eq!(command.lock("1").await, Answer::Done);
        assert_eq!(command.read().await, None);
        world.is_down(true);
        for _ in 0..2 {
            let answer = match reads {
                true => command.backend.handle(Asked::Read).await,
                false => command.write("1", "{}").await,
            };
            let why = refusal(answer);
            assert!(why.contains("lease ends soon"), "{why}");
            let left = command.backend.remaining();
            assert!(left <= RESERVE && left > RESERVE - Duration::from_secs(1), "{left:?}");
        }
        command.backend.lost().await;
        assert!(refusal(command.write("1", "{}").await).contains("the lock was lost"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_of_the_store_only_delays_a_write() {
    let world = World::of_one_store();
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    assert_eq!(command.write("1", "{}").await, Answer::Done);
    world.is_down(true);
    let env = world.locker.store().env().clone();
    env.sleep(Duration::from_secs(3)).await;
    world.is_down(false);
    assert_eq!(command.write("1", r#"{"a":1}"#).await, Answer::Done);
    env.sleep(TTL * 2).await;
    assert!(command.backend.remaining() > RESERVE, "it is renewed");
    assert_eq!(command.write("1", "{}").await, Answer::Done);
}

#[tokio::test(start_paused = true)]
async fn requests_may_be_repeated() {
    let world = World::new().await;
    let command = world.command(&[]);
    for _ in 0..2 {
        assert_eq!(command.lock("1").await, Answer::Done);
    }
    assert_eq!(command.read().await, None);
    for state in ["{}", "{}", r#"{"a":1}"#, "{}"] {
        assert_eq!(command.write("1", state).await, Answer::Done);
    }
    for _ in 0..2 {
        assert_eq!(command.unlock("1").await, Answer::Done);
    }
    assert_eq!(world.stored().await.unwrap(), b"{}");
}

#[tokio::test(start_paused = true)]
async fn a_write_needs_the_lock_of_its_own_process() {
    let world = World::new().await;
    let command = world.command(&[]);
    let none = Asked::Write { id: None, state: "{}".into() };
    assert!(refusal(command.backend.handle(none).await).contains("-lock=false"));
    assert_eq!(command.lock("1").await, Answer::Done);
    for id in [None, Some("2".to_owned())] {
        let why = refusal(command.backend.handle(Asked::Write { id, state: "{}".into() }).await);
        assert!(why.contains("held by maria@ci-7, ID 1"), "{why}");
    }
    refusal(command.unlock("2").await);
    assert_eq!(world.stored().await, None);
}

/// On S3, versions depend only on the bytes, and a fence refuses bytes that the object had under a lower token.
#[tokio::test(start_paused = true)]
async fn an_earlier_state_can_be_restored() {
    let world = World::new().await;
    for (id, state) in [("1", "{}"), ("2", r#"{"a":1}"#), ("3", "{}"), ("4", ""), ("5", "{}"), ("6", "")] {
        let command = world.command(&[]);
        assert_eq!(command.lock(id).await, Answer::Done);
        command.read().await;
        assert_eq!(command.write(id, state).await, Answer::Done, "{id}");
        assert_eq!(command.read().await.unwrap_or_default(), state);
        assert_eq!(command.unlock(id).await, Answer::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn force_unlock_ends_only_the_lock_that_the_command_names() {
    let world = World::new().await;
    let held = world.command(&[]);
    assert_eq!(held.lock("lock-1").await, Answer::Done);
    let force = async |words: &[&str]| world.command(words).backend.handle(Asked::Unlock(Bytes::new())).await;
    for words in [&["tofu", "force-unlock", "lock-2"][..], &["tofu", "force-unlock", "lock-11"], &[]] {
        let why = refusal(force(words).await);
        assert!(why.contains("ID lock-1,") && why.contains("maria@ci-7"), "{why}");
    }
    assert_eq!(force(&["tofu", "force-unlock", "-force", "lock-1"]).await, Answer::Done);
    held.backend.lost().await;
    assert_eq!(world.command(&[]).lock("lock-2").await, Answer::Done);
    let words = ["sh", "-c", "tofu force-unlock -force lock-2"];
    assert_eq!(force(&words).await, Answer::Done, "also in a script");
    assert!(refusal(force(&words).await).contains("is not held"));
}

/// As newer versions of OpenTofu do.
#[tokio::test(start_paused = true)]
async fn force_unlock_may_send_the_id() {
    let world = World::new().await;
    let (held, other) = (world.command(&[]), world.command(&["tofu", "force-unlock", "lock-2"]));
    assert_eq!(held.lock("lock-1").await, Answer::Done);
    let why = refusal(other.unlock("lock-2").await);
    assert!(why.contains("ID lock-1,") && why.contains("nothing was unlocked"), "{why}");
    held.backend.remaining();
    assert!(held.backend.handle(Asked::Read).await == Answer::State(None), "it is still held");
    assert_eq!(other.unlock("lock-1").await, Answer::Done);
    held.backend.lost().await;
    assert!(refusal(other.unlock("lock-1").await).contains("is not held"));
    // An unlock of its own lock is none of these.
    assert_eq!(other.lock("lock-3").await, Answer::Done);
    for _ in 0..2 {
        assert_eq!(other.unlock("lock-3").await, Answer::Done);
    }
}

/// Terraform takes 409 for the lock of another process, shows its own ID and repeats the request.
#[tokio::test(start_paused = true)]
async fn a_lock_that_fails_is_not_taken_for_a_held_one() {
    let world = World::new().await;
    let acquire: Acquire =
        Box::new(|_| Box::pin(async { Err(Error::new(ErrorKind::Denied, "no permission")) }));
    let name = leasehold::LockName::new(NAME).unwrap();
    let locker = world.locker.clone();
    let warn: Warn = Box::new(|_| ());
    let backend = StateBackend::new(locker, name, world.object(), Vec::new(), acquire, warn, RESERVE);
    let answer = backend.handle(Asked::Lock(info("1"))).await;
    assert!(matches!(answer, Answer::Invalid(why) if why.contains("no permission")));
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_not_released_under_a_write() {
    let world = World::new().await;
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    let turn = command.backend.turn_of_a_write().await;
    // As with --on-lost none: the lease is renewed, and the write does not end.
    assert!(command.backend.close().await.guard.is_none());
    drop(turn);
    assert!(matches!(world.command(&[]).lock("2").await, Answer::Locked(_)), "it stays held for now");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_command_waits_for_a_write() {
    let world = World::new().await;
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    let turn = command.backend.turn_of_a_write().await;
    let backend = command.backend.clone();
    let closing = tokio::spawn(async move { backend.close().await });
    world.locker.store().env().sleep(Duration::from_secs(1)).await;
    assert!(!closing.is_finished());
    drop(turn);
    closing.await.unwrap().guard.expect("it is released after the write").release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_command_leaves_is_handed_back() {
    let world = World::new().await;
    let command = world.command(&[]);
    assert_eq!(command.lock("1").await, Answer::Done);
    let left = command.backend.close().await;
    let guard = left.guard.expect("it was not released");
    assert_eq!(left.token, guard.token().ok());
    guard.release().await.unwrap();
    assert!(matches!(command.lock("2").await, Answer::Failed(_)), "the command has ended");
    assert_eq!(world.command(&[]).lock("3").await, Answer::Done);
}

#[tokio::test(start_paused = true)]
async fn only_the_command_with_the_password_is_answered() {
    let world = World::new().await;
    let listener = StateListener::bind().unwrap();
    let variables = listener.variables();
    let value = |name: &str| variables.iter().find(|(variable, _)| *variable == name).unwrap().1.clone();
    assert!(value("TF_HTTP_ADDRESS").starts_with("http://127.0.0.1:"));
    assert!(value("TF_HTTP_ADDRESS").ends_with(STATE));
    assert!(value("TF_HTTP_LOCK_ADDRESS").ends_with(LOCK));
    assert!(value("TF_HTTP_UNLOCK_ADDRESS").ends_with(UNLOCK));
    let key = digest(&authorization(&value("TF_HTTP_PASSWORD")));
    let command = world.command(&[]);
    let server = Server { backend: command.backend.clone(), key };
    let router = TowerToHyperService::new(server.router());
    let asked = async |method: &str, path: &str, password: Option<&str>, body: Bytes| {
        let request = Request::builder().method(method).uri(format!("{path}?ID=1"));
        let request = match password {
            Some(password) => request.header(header::AUTHORIZATION, authorization(password)),
            None => request,
        };
        router.call(request.body(Body::from(body)).unwrap()).await.unwrap().status().as_u16()
    };
    let status = async |method: &str, password: Option<&str>, body: Bytes| {
        let path = match method {
            "LOCK" => LOCK,
            "UNLOCK" => UNLOCK,
            _ => STATE,
        };
        asked(method, path, password, body).await
    };
    let password = value("TF_HTTP_PASSWORD");
    let given = Some(&*password);
    for wrong in [None, Some(""), Some(&password[1..]), Some("x")] {
        assert_eq!(status("GET", wrong, Bytes::new()).await, 401);
    }
    assert_eq!(status("LOCK", given, info("1")).await, 200);
    assert_eq!(status("LOCK", given, info("2")).await, 423);
    assert_eq!(status("LOCK", given, "x".into()).await, 400);
    assert_eq!(status("GET", given, Bytes::new()).await, 204);
    assert_eq!(status("POST", given, vec![b' '; 50 << 20].into()).await, 200);
    assert_eq!(status("POST", given, "{}".into()).await, 200);
    assert_eq!(status("GET", given, Bytes::new()).await, 200);
    for (method, path, option) in [
        ("PUT", STATE, "update_method"),
        ("LOCK", STATE, "update_method"),
        ("DELETE", STATE, "update_method"),
        ("POST", LOCK, "lock_method"),
        ("DELETE", UNLOCK, "unlock_method"),
        ("GET", "/", "address"),
    ] {
        assert_eq!(asked(method, path, given, Bytes::new()).await, 405, "{method} {path}");
        let warning = command.warnings.lock().unwrap().pop().unwrap();
        assert!(warning.contains(&format!("remove {option} from")), "{warning}");
        assert_eq!(world.stored().await.unwrap(), b"{}", "{method} {path}");
    }
    assert_eq!(status("UNLOCK", given, info("2")).await, 409);
    assert_eq!(status("UNLOCK", given, info("1")).await, 200);
}
