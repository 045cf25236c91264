//! S3, on MinIO and on moto.

use std::io;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::env::Env;
use leasehold::stores::s3::S3Register;
use tokio::process::Command;

use super::{aws, is_by_existence, object, vouch};
#[cfg(feature = "chaos")]
use crate::chaos::{
    plan::Kind as Fault,
    scenario::{Clocks, FENCE_ONLY, Scenario, WITHOUT_TOKENS},
    servers::Http,
    worker::Kind as Lock,
};
use crate::conformance::Harness;
use crate::harness::Fresh;
use crate::launch::{Launch, STORE, measured, program};
use crate::peers::Program;
use crate::servers::{Server, below, endpoint, parsed};
use crate::test_store::{Bench, Budget, Kind, Storage, TestStore};

impl Server {
    /// MinIO, an S3 server in Go.
    pub const MINIO: Self = Self { variable: "LEASEHOLD_TEST_S3_MINIO" };
    /// moto, an S3 server in Python.
    pub const MOTO: Self = Self { variable: "LEASEHOLD_TEST_S3_MOTO" };
    /// An old gofakes3, an S3 server in Go, which ignores preconditions.
    pub const S3_IGNORING: Self = Self { variable: "LEASEHOLD_TEST_BAD_S3_IGNORING" };
    /// s3s-fs, an S3 server in Rust, which is not atomic: it checks preconditions, then writes.
    pub const S3_RACY: Self = Self { variable: "LEASEHOLD_TEST_BAD_S3_RACY" };
}

impl Program {
    /// The AWS command-line client.
    pub const AWS: Self = Self::tool("LEASEHOLD_TEST_AWS");
}

/// S3.
#[derive(Debug)]
pub struct S3;

#[async_trait]
impl TestStore for S3 {
    fn name(&self) -> &'static str {
        "s3"
    }

    fn storages(&self) -> &'static [Storage] {
        const {
            &[
                Storage::at("s3_minio", Server::MINIO, Kind::Http),
                // This server handles one request at a time, so requests queue.
                Storage::at("s3_moto", Server::MOTO, Kind::Serial).with_ttl(Duration::from_secs(8)),
            ]
        }
    }

    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness> {
        Box::new(Fresh::on(self, storage))
    }

    async fn delete_record(&self, url: &str, name: &LockName) {
        // This does not go through leasehold's register, which deletes only if the server has conditional deletes.
        // MinIO has none.
        let (client, parsed) = (client(url).await, parsed(url));
        let key = format!("{}/{}", parsed.path().trim_matches('/'), object(url, name));
        let bucket = parsed.authority().unwrap();
        client.head_object().bucket(bucket).key(&key).send().await.expect("there is a record to delete");
        client.delete_object().bucket(bucket).key(&key).send().await.unwrap();
    }

    async fn read_record(&self, url: &str, name: &LockName) -> String {
        let (client, parsed) = (client(url).await, parsed(url));
        let key = format!("{}/{}", parsed.path().trim_matches('/'), object(url, name));
        let found = client.get_object().bucket(parsed.authority().unwrap()).key(key).send().await.unwrap();
        let metadata = format!("{:?}", found.metadata);
        metadata + &String::from_utf8_lossy(&found.body.collect().await.unwrap().into_bytes())
    }

    async fn vouch_for(&self, url: &str) {
        let register = S3Register::open(parsed(url), Env::system()).await.unwrap();
        vouch(&register, is_by_existence(url), "\"00000000000000000000000000000000\"").await;
    }

    fn budget(&self) -> Option<Budget> {
        Some(Budget {
            request: |seen| seen.path.ends_with("/lock.lock").then(|| seen.method.clone()),
            examines_first: false,
            first: &["GET", "PUT"],
            cold: &["GET", "PUT"],
            refusal: &["GET"],
            read: "GET",
            write: "PUT",
            joins: 1,
            write_method: "PUT",
        })
    }

    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        const MINIO: Scenario = Scenario::store(
            "s3-minio",
            |folder, workers| Http::start(&MinIo, folder, workers),
            &[Fault::StopServer, Fault::KillServer],
        );
        // This server handles one request at a time, so the workers' requests queue.
        const MOTO: Scenario = Scenario {
            ttl: Duration::from_secs(5),
            ..Scenario::store(
                "s3-moto",
                |folder, workers| Http::start(&Moto, folder, workers),
                &[Fault::StopServer],
            )
        };
        const ALL: &[Scenario] = &[
            MINIO,
            MOTO,
            Scenario {
                name: "s3-moto-existence",
                options: "protocol=existence",
                promises: WITHOUT_TOKENS,
                ..MOTO
            },
            Scenario {
                name: "clocks-twice-too-fast",
                promises: FENCE_ONLY,
                clocks: Clocks::TwiceTooFast,
                ..MOTO
            },
            Scenario::naive("naive-plain-object", Lock::PlainObject, MOTO.start, &[Fault::StopServer]),
        ];
        ALL
    }

    fn bench(&self) -> Bench {
        Bench { title: "S3 (MinIO)", scenarios: "abcdefij", server: Some(|folder| measured(&MinIo, folder)) }
    }
}

/// Returns a client of the server at `url`, for operations that an operator would do.
///
/// # Panics
/// When the URL has no endpoint or no region.
pub async fn client(url: &str) -> aws_sdk_s3::Client {
    let url = parsed(url);
    client_of(url.option("endpoint").unwrap(), url.option("region").unwrap().to_owned()).await
}

async fn client_of(endpoint: &str, region: String) -> aws_sdk_s3::Client {
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let config = aws_sdk_s3::config::Builder::from(&config)
        .endpoint_url(endpoint)
        .region(aws_sdk_s3::config::Region::new(region))
        .force_path_style(true)
        .build();
    aws_sdk_s3::Client::from_conf(config)
}

/// MinIO, whose data survives `kill -9`.
#[derive(Debug)]
struct MinIo;

/// moto.
#[derive(Debug)]
struct Moto;

#[async_trait]
impl Launch for MinIo {
    fn command(&self, address: &str, folder: &Path) -> Command {
        let mut minio = Command::new(program("LEASEHOLD_TEST_MINIO_SERVER"));
        minio.arg("server").arg(folder.join("minio")).args(["--address", address]);
        // By default MinIO creates this folder in the user's home.
        minio.arg("--certs-dir").arg(folder.join("certs"));
        minio.env("MINIO_ROOT_USER", program("AWS_ACCESS_KEY_ID"));
        minio.env("MINIO_ROOT_PASSWORD", program("AWS_SECRET_ACCESS_KEY"));
        minio.envs([("MINIO_BROWSER", "off"), ("MINIO_UPDATE", "off")]);
        minio
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        make_bucket(address).await
    }
}

#[async_trait]
impl Launch for Moto {
    fn command(&self, address: &str, _folder: &Path) -> Command {
        aws::moto(address)
    }

    async fn make_store(&self, address: &str) -> io::Result<String> {
        make_bucket(address).await
    }
}

async fn make_bucket(address: &str) -> io::Result<String> {
    let client = client_of(&format!("http://{address}"), "us-east-1".to_owned()).await;
    match client.create_bucket().bucket(STORE).send().await {
        // An earlier attempt created the bucket, but its response was lost.
        Err(error)
            if !error.as_service_error().is_some_and(|error| error.is_bucket_already_owned_by_you()) =>
        {
            Err(io::Error::other(format!("no bucket: {error:?}")))
        }
        _ => Ok(below(&format!("s3://{STORE}?{}&region=us-east-1", endpoint(address)), "chaos")),
    }
}
