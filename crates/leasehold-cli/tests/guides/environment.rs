//! Substitutes for things that readers of the guides have and the tests lack. The tests change nothing else in a guide.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::{env, fs};

use leasehold_testkit::launch::free_port;
use leasehold_testkit::peers::Program;
use leasehold_testkit::servers::Server;

use super::root;
use super::script::quoted;

/// The words in a guide that need a substitute.
const SUBSTITUTES: &[(&str, Maker)] = &[
    ("my-bucket", bucket),
    ("our-bucket", deleting_bucket),
    ("dynamodb", dynamodb),
    ("my-table", table),
    ("my-locks", table),
    ("my-old-locks", table),
    ("my-app/", prefix),
    ("10.0.0.1:2379", etcd),
    ("https://storage.googleapis.com", google),
    ("$DATABASE_URL", database),
    ("REDIS_URL", redis),
    ("my-report", key),
    ("old-java-worker", old_java_worker),
    ("old-go-worker", old_go_worker),
    ("gcloud", gcloud),
    ("team-locks", bucket),
    ("/src/leasehold", checkout),
    ("127.0.0.1:7421", address),
    ("127.0.0.1:7430", address),
    ("127.0.0.1:7431", address),
    ("127.0.0.1:7432", address),
    ("127.0.0.1:7433", address),
    ("127.0.0.1:7440", address),
    ("127.0.0.1:7441", address),
];

/// nginx from Debian's package. The package is not installed, because that would start a service.
const NGINX: Program = Program::tool("LEASEHOLD_TEST_NGINX");

type Maker = fn() -> Substitute;

/// Variables of the test process that the commands of the guides inherit.
const INHERITED: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "NO_PROXY",
    "no_proxy",
    "TMPDIR",
];

/// A substitute for something that readers have.
#[derive(Default)]
struct Substitute {
    /// The text that replaces the word.
    text: Option<String>,
    variables: Vec<(&'static str, String)>,
    /// Shell commands that create the substitute.
    setup: String,
    /// The name and the shell script of a program that it adds.
    program: Option<(&'static str, String)>,
}

/// Creates a bucket on an S3 server and on the GCS server. The clients find the servers by these variables.
fn bucket_on(s3: Server) -> Substitute {
    let name = unique("bucket");
    let (s3, gcs) = (s3.address(), Server::FAKE_GCS.address());
    Substitute {
        setup: format!(
            "curl -sSf -X PUT --aws-sigv4 aws:amz:us-east-1:s3 --user leasehold:leasehold-test http://{s3}/{name}\n\
             curl -sSf -o .bucket -H 'Content-Type: application/json' -d '{{\"name\": \"{name}\"}}' 'http://{gcs}/storage/v1/b?project=p'\n"
        ),
        text: Some(name),
        variables: vec![
            ("AWS_ENDPOINT_URL_S3", format!("http://{s3}")),
            ("STORAGE_EMULATOR_HOST", format!("http://{gcs}")),
        ],
        program: None,
    }
}

fn bucket() -> Substitute {
    bucket_on(Server::MINIO)
}

/// Creates a bucket on a server with conditional deletes, which MinIO does not have.
fn deleting_bucket() -> Substitute {
    bucket_on(Server::MOTO)
}

/// Returns a free address to listen on, because other tests may run on this machine.
fn address() -> Substitute {
    let free = format!("127.0.0.1:{}", free_port().unwrap());
    Substitute { text: Some(free), ..Substitute::default() }
}

fn dynamodb() -> Substitute {
    let endpoint = format!("http://{}", Server::DYNAMODB_LOCAL.address());
    Substitute { variables: vec![("AWS_ENDPOINT_URL_DYNAMODB", endpoint)], ..Substitute::default() }
}

/// Returns a new name for a table. The guide creates the table.
fn table() -> Substitute {
    Substitute { text: Some(unique("table")), ..Substitute::default() }
}

/// Returns a new prefix of keys in etcd.
fn prefix() -> Substitute {
    Substitute { text: Some(unique("my-app") + "/"), ..Substitute::default() }
}

fn etcd() -> Substitute {
    Substitute { text: Some(Server::ETCD.address()), ..Substitute::default() }
}

fn google() -> Substitute {
    Substitute { text: Some(format!("http://{}", Server::FAKE_GCS.address())), ..Substitute::default() }
}

/// Creates a PostgreSQL database.
fn database() -> Substitute {
    let (server, name) = (Server::POSTGRESQL.url(), unique("guide").replace('-', "_"));
    let database = server.replace("/postgres", &format!("/{name}"));
    Substitute {
        setup: format!("psql -Xq {} -c 'CREATE DATABASE {name}'\n", quoted(&server)),
        variables: vec![("DATABASE_URL", database)],
        ..Substitute::default()
    }
}

fn redis() -> Substitute {
    let url = format!("redis://{}", Server::REDIS.address());
    Substitute { variables: vec![("REDIS_URL", url)], ..Substitute::default() }
}

/// Returns a new key in Redis.
fn key() -> Substitute {
    Substitute { text: Some(unique("my-report")), ..Substitute::default() }
}

/// Returns the folder of this checkout.
fn checkout() -> Substitute {
    Substitute { text: Some(root().display().to_string()), ..Substitute::default() }
}

/// Returns a program that uses AWS's lock client to run a command under the lock `nightly`.
fn old_java_worker() -> Substitute {
    old_worker("old-java-worker", Program::DYNAMODB_JAVA)
}

fn old_go_worker() -> Substitute {
    old_worker("old-go-worker", Program::DYNAMODB_GO)
}

fn old_worker(name: &'static str, peer: Program) -> Substitute {
    let peer = quoted(&peer.path().display().to_string());
    let script = format!(
        r#"#!/bin/bash -eu
options=(--endpoint "$AWS_ENDPOINT_URL_DYNAMODB" --lock nightly --ttl 20 --table "$1")
case $2 in --try) {peer} try "${{options[@]}}"; exit ;; esac
coproc {peer} hold "${{options[@]}}"
id=$! to=${{COPROC[1]}}
read -r granted <&"${{COPROC[0]}}"
status=0
"${{@:2}}" || status=$?
exec {{to}}>&-
wait $id
exit $status
"#
    );
    Substitute { program: Some((name, script)), ..Substitute::default() }
}

/// Returns a program that prints an access token. The emulators do not check it.
fn gcloud() -> Substitute {
    Substitute { program: Some(("gcloud", "#!/bin/sh\necho token\n".to_owned())), ..Substitute::default() }
}

/// Returns the folder of the Python client. Readers have installed its package.
fn python_client() -> String {
    root().join("clients/python/src").display().to_string()
}

/// Returns the folder of the Ruby client. Readers have installed its gem.
fn ruby_client() -> String {
    root().join("clients/ruby/lib").display().to_string()
}

fn unique(name: &str) -> String {
    let random = leasehold::lease::Id::random(&leasehold::random::Random::from_os()).to_string();
    format!("{name}-{}", &random[..8])
}

/// The substitutes that one guide needs.
pub(crate) struct Environment {
    substitutes: BTreeMap<&'static str, Substitute>,
    /// Replaces `/usr/local/bin`: a folder with the programs that readers have installed.
    programs: PathBuf,
}

impl Environment {
    /// Creates the environment for `guide` in `folder`.
    pub(crate) fn for_guide(guide: &str, folder: &Path) -> Self {
        let mentioned = SUBSTITUTES.iter().filter(|(word, _)| guide.contains(word));
        let substitutes = mentioned.map(|(word, substitute)| (*word, substitute())).collect();
        let environment = Self { substitutes, programs: folder.join(".programs") };
        environment.install();
        environment
    }

    fn install(&self) {
        fs::create_dir(&self.programs).unwrap();
        symlink(assert_cmd::cargo::cargo_bin!("leasehold"), self.programs.join("leasehold")).unwrap();
        for (name, program) in [
            ("aws", Program::AWS),
            ("etcdctl", Program::ETCDCTL),
            ("nginx", NGINX),
            ("tofu", Program::OPENTOFU),
        ] {
            if let Ok(path) = env::var(program.variable()) {
                symlink(path, self.programs.join(name)).unwrap();
            }
        }
        if let Ok(packages) = env::var(Program::GUIDE_NODE.variable()) {
            // Node finds packages only in a folder of this name next to the program.
            symlink(packages, self.programs.with_file_name("node_modules")).unwrap();
        }
        for (name, script) in self.substitutes.values().filter_map(|substitute| substitute.program.as_ref()) {
            let path = self.programs.join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Returns the guide with the substitutes.
    pub(crate) fn adapted(&self, guide: &str) -> String {
        let guide = guide.replace("/usr/local/bin", &self.programs.display().to_string());
        let texts =
            self.substitutes.iter().filter_map(|(word, substitute)| Some((word, substitute.text.as_ref()?)));
        texts.fold(guide, |guide, (word, text)| guide.replace(word, text))
    }

    pub(crate) fn setup(&self) -> String {
        self.substitutes.values().map(|substitute| substitute.setup.as_str()).collect()
    }

    /// Returns the environment variables of the commands.
    pub(crate) fn variables(&self) -> BTreeMap<String, String> {
        let ours = INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?)));
        let given = self.substitutes.values().flat_map(|substitute| &substitute.variables);
        // Version 1 of the AWS command uses this name.
        let region = env::var("AWS_REGION").map(|region| ("AWS_DEFAULT_REGION".to_owned(), region));
        // Compilers may be in other folders than Debian's programs.
        let others = env::var("PATH").unwrap_or_default();
        let python = env::var(Program::GUIDE_PYTHON.variable()).unwrap_or_default();
        let python = Path::new(&python).parent().unwrap_or(Path::new("")).display();
        let path = format!("{}:{python}:/usr/local/bin:/usr/bin:/bin:{others}", self.programs.display());
        ours.chain(given.map(|(name, value)| ((*name).to_owned(), value.clone())))
            .chain(region)
            .chain([
                ("PYTHONPATH".to_owned(), python_client()),
                ("RUBYLIB".to_owned(), ruby_client()),
                ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()),
            ])
            .chain([("PATH".to_owned(), path), ("LANG".to_owned(), "C.UTF-8".to_owned())])
            .collect()
    }
}
