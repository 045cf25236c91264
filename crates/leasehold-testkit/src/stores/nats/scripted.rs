//! A server whose responses a test determines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};

/// A server whose responses a test determines.
#[derive(Debug)]
pub struct Scripted {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

type Respond = dyn Fn(&str, &str) -> Option<Value> + Send + Sync;

impl Scripted {
    /// Starts the server. `respond` gets the subject and the payload of each request. If it returns `None`, the request
    /// gets no response.
    ///
    /// # Panics
    /// When no loopback port is free.
    pub async fn start(respond: impl Fn(&str, &str) -> Option<Value> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let (counted, respond) = (connections.clone(), Arc::new(respond));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let respond = respond.clone();
                tokio::spawn(async move { serve(client, &*respond).await });
            }
        });
        Self { address, connections }
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many connections were opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Serves a connection until it is closed.
async fn serve(client: TcpStream, respond: &Respond) -> Option<()> {
    let mut client = BufStream::new(client);
    let hello = r#"INFO {"server_id":"x","version":"2.15.3","proto":1,"headers":true,"max_payload":1048576}"#;
    client.write_all(format!("{hello}\r\n").as_bytes()).await.ok()?;
    let mut subscription = String::new();
    loop {
        client.flush().await.ok()?;
        let mut line = String::new();
        if client.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let answer = match *words.first()? {
            "PING" => "PONG\r\n".to_owned(),
            // The client receives all responses with one subscription.
            "SUB" => {
                subscription = (*words.last()?).to_owned();
                continue;
            }
            kind @ ("PUB" | "HPUB") => {
                let size: usize = words.last()?.parse().ok()?;
                let headers = if kind == "HPUB" { words.get(words.len() - 2)?.parse().ok()? } else { 0 };
                let mut message = vec![0; size + 2];
                client.read_exact(&mut message).await.ok()?;
                let payload = String::from_utf8_lossy(message.get(headers..size)?);
                let Some(answer) = respond(words.get(1)?, &payload) else { continue };
                let (answer, inbox) = (answer.to_string(), words.get(2)?);
                format!("MSG {inbox} {subscription} {}\r\n{answer}\r\n", answer.len())
            }
            _ => continue,
        };
        client.write_all(answer.as_bytes()).await.ok()?;
    }
}
