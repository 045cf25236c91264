//! A web service with one lock for each user: requests that change the same account run one after the other, on all
//! servers that share the store. Starts the service, sends it ten deposits at once, and prints the balance.
//!
//! ```text
//! cargo run --example lock_per_user
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use leasehold::{ErrorKind, Guard, Locker};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone)]
struct App {
    locker: Locker,
    accounts: Accounts,
}

/// Stands for a database that only knows reads and writes.
#[derive(Clone, Default)]
struct Accounts(Arc<Mutex<HashMap<String, u64>>>);

impl Accounts {
    async fn read(&self, user: &str) -> u64 {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(user).copied().unwrap_or_default()
    }

    async fn write(&self, user: &str, balance: u64) {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(user.to_owned(), balance);
    }
}

/// Adds one to the balance of `user`.
///
/// axum drops this future when the client goes away. The lock is released then, too.
async fn deposit(State(app): State<App>, Path(user): Path<String>) -> Result<Json<u64>, StatusCode> {
    // A user whose name cannot be part of a lock's name gets the status 400.
    let lock = app.locker.lock(format!("user/{user}")).ttl(Duration::from_secs(10));
    let guard = lock.acquire_within(Duration::from_secs(5)).await.map_err(|error| status(&error))?;
    let balance = add(&app.accounts, &user, &guard).await;
    guard.release().await.and(balance).map(Json).map_err(|error| status(&error))
}

async fn add(accounts: &Accounts, user: &str, guard: &Guard) -> leasehold::Result<u64> {
    let balance = accounts.read(user).await + 1;
    // Local, no I/O. A database that checks the token refuses a late write, too.
    guard.check()?;
    accounts.write(user, balance).await;
    Ok(balance)
}

fn status(error: &leasehold::Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Held => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = App { locker: Locker::open("mem:").await?, accounts: Accounts::default() };
    let service = Router::new().route("/deposit/{user}", post(deposit)).with_state(app.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, service).await });

    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..10 {
        requests.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"POST /deposit/ada HTTP/1.0\r\n\r\n").await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await.map(|_| response)
        });
    }
    while let Some(response) = requests.join_next().await {
        let response = response??;
        println!("{}", response.lines().last().unwrap_or_default());
    }
    println!("balance {}", app.accounts.read("ada").await);
    Ok(())
}
