//! A server on the loopback interface that responds according to its script, for tests of requests.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A request that the server received.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Seen {
    /// Method and target.
    pub(in crate::stores) line: String,
    /// The headers in lower case, one per line.
    pub(in crate::stores) head: String,
    pub(in crate::stores) body: Vec<u8>,
}

impl Seen {
    pub(in crate::stores) fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line == header)
    }
}

/// The reaction of the script to a request.
pub(in crate::stores) enum Reply {
    Answer(String),
    /// Close the connection without a response.
    Hang,
    /// Never respond.
    Silence,
}

/// A server that responds according to its script.
pub(in crate::stores) struct Server {
    pub(in crate::stores) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(in crate::stores) async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", script).await
    }

    /// Starts a server that listens at `address`.
    pub(in crate::stores) async fn start_at(
        address: &str,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, script) = (seen.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, log.clone(), script.clone()));
            }
        });
        Self { url, seen }
    }

    /// Starts a server with TLS. Its certificate, for 127.0.0.1 and localhost, is signed by a new authority. The
    /// certificate of the authority is `ca.pem` in `folder`.
    pub(in crate::stores) async fn start_tls(
        folder: &Path,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        const NEW: &str = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
        openssl(folder, &format!("{NEW} -keyout ca.key -out ca.pem -subj /CN=authority"));
        let by = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost";
        openssl(folder, &format!("{NEW} {by} -keyout s.key -out s.pem -subj /CN=server -addext {names}"));
        let certificate = CertificateDer::from_pem_file(folder.join("s.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("s.key")).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, script) = (seen.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, log, script) = (acceptor.clone(), log.clone(), script.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        converse(stream, log, script).await;
                    }
                });
            }
        });
        Self { url, seen }
    }

    /// Starts a server that refuses every request with `refusal` the first time, and accepts it when it is sent again.
    pub(in crate::stores) async fn unsteady(
        refusal: String,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let turns = AtomicUsize::new(0);
        Self::start(move |seen| match turns.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Reply::Answer(refusal.clone()),
            _ => script(seen),
        })
        .await
    }

    /// Starts a server that gives every request the same response.
    pub(in crate::stores) async fn always(answer: impl Into<String>) -> Self {
        let answer = answer.into();
        Self::start(move |_| Reply::Answer(answer.clone())).await
    }

    pub(in crate::stores) fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
    let output = output.expect("openssl, to make certificates with");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    log: Arc<Mutex<Vec<Seen>>>,
    script: Arc<impl Fn(&Seen) -> Reply + Send + Sync + 'static>,
) {
    while let Some(seen) = request(&mut stream).await {
        let reply = script(&seen);
        log.lock().unwrap().push(seen);
        match reply {
            Reply::Answer(answer) => {
                drop(stream.write_all(answer.as_bytes()).await);
                if answer.contains("Connection: close") {
                    return;
                }
            }
            Reply::Hang => return,
            Reply::Silence => std::future::pending().await,
        }
    }
}

async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let (line, head) = text.split_once("\r\n").unwrap();
    let head = head.to_ascii_lowercase().replace("\r\n", "\n");
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let line = line.trim_end_matches(" HTTP/1.1").to_owned();
    Some(Seen { line, head, body: bytes[head_end..].to_vec() })
}

pub(in crate::stores) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}
