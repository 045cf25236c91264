//! What the readers of the guides have, and what takes its place here. This is all that is changed in a guide.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::{env, fs};

use leasehold_testkit::peers::Program;
use leasehold_testkit::servers::Server;

use super::script::quoted;

/// What a guide may mention, and what takes its place.
const STAND_INS: &[(&str, Maker)] = &[
    ("my-bucket", bucket),
    ("dynamodb", dynamodb),
    ("my-table", table),
    ("my-locks", table),
    ("my-app/", prefix),
    ("10.0.0.1:2379", etcd),
    ("https://storage.googleapis.com", google),
    ("$DATABASE_URL", database),
    ("old-java-worker", old_java_worker),
    ("old-go-worker", old_go_worker),
    ("gcloud", gcloud),
];

type Maker = fn() -> StandIn;

/// Variables of ours that the guides' commands get, if they are there.
const HANDED_ON: &[&str] = &[
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

/// What takes a place.
#[derive(Default)]
struct StandIn {
    /// Is written instead.
    text: Option<String>,
    variables: Vec<(&'static str, String)>,
    /// Shell commands that make it.
    preparation: String,
    /// A program's name and its shell script.
    program: Option<(&'static str, String)>,
}

/// A bucket that nobody else uses, on servers for S3 and for Google Cloud Storage. Both kinds of clients go by these
/// variables.
fn bucket() -> StandIn {
    let name = unique("my-bucket");
    let (s3, gcs) = (Server::MOTO.address(), Server::FAKE_GCS.address());
    StandIn {
        preparation: format!(
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

fn dynamodb() -> StandIn {
    let endpoint = format!("http://{}", Server::DYNAMODB_LOCAL.address());
    StandIn { variables: vec![("AWS_ENDPOINT_URL_DYNAMODB", endpoint)], ..StandIn::default() }
}

/// A table's name that nobody else uses. The guides make the tables.
fn table() -> StandIn {
    StandIn { text: Some(unique("table")), ..StandIn::default() }
}

/// Keys in etcd that nobody else uses.
fn prefix() -> StandIn {
    StandIn { text: Some(unique("my-app") + "/"), ..StandIn::default() }
}

fn etcd() -> StandIn {
    StandIn { text: Some(Server::ETCD.address()), ..StandIn::default() }
}

fn google() -> StandIn {
    StandIn { text: Some(format!("http://{}", Server::FAKE_GCS.address())), ..StandIn::default() }
}

/// A PostgreSQL database of its own.
fn database() -> StandIn {
    let (server, name) = (Server::POSTGRESQL.url(), unique("guide").replace('-', "_"));
    let database = server.replace("/postgres", &format!("/{name}"));
    StandIn {
        preparation: format!("psql -Xq {} -c 'CREATE DATABASE {name}'\n", quoted(&server)),
        variables: vec![("DATABASE_URL", database)],
        ..StandIn::default()
    }
}

/// A program with AWS's lock client, which runs a command under the lock `nightly`.
fn old_java_worker() -> StandIn {
    old_worker("old-java-worker", Program::DYNAMODB_JAVA)
}

fn old_go_worker() -> StandIn {
    old_worker("old-go-worker", Program::DYNAMODB_GO)
}

fn old_worker(name: &'static str, peer: Program) -> StandIn {
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
    StandIn { program: Some((name, script)), ..StandIn::default() }
}

/// Gives an access token that nobody asks for.
fn gcloud() -> StandIn {
    StandIn { program: Some(("gcloud", "#!/bin/sh\necho token\n".to_owned())), ..StandIn::default() }
}

fn unique(name: &str) -> String {
    let random = leasehold::lease::Id::random(&leasehold::random::Random::from_os()).to_string();
    format!("{name}-{}", &random[..8])
}

/// The stand-ins that one guide needs.
pub(crate) struct Surroundings {
    stand_ins: BTreeMap<&'static str, StandIn>,
    /// What stands in for `/usr/local/bin`: a folder with the programs that readers have installed.
    programs: PathBuf,
}

impl Surroundings {
    /// For `guide`, which is followed in `folder`.
    pub(crate) fn of(guide: &str, folder: &Path) -> Self {
        let mentioned = STAND_INS.iter().filter(|(word, _)| guide.contains(word));
        let stand_ins = mentioned.map(|(word, stand_in)| (*word, stand_in())).collect();
        let surroundings = Self { stand_ins, programs: folder.join(".programs") };
        surroundings.install();
        surroundings
    }

    fn install(&self) {
        fs::create_dir(&self.programs).unwrap();
        symlink(assert_cmd::cargo::cargo_bin!("leasehold"), self.programs.join("leasehold")).unwrap();
        for (name, program) in [("aws", Program::AWS), ("etcdctl", Program::ETCDCTL)] {
            if let Ok(path) = env::var(program.variable()) {
                symlink(path, self.programs.join(name)).unwrap();
            }
        }
        for (name, script) in self.stand_ins.values().filter_map(|stand_in| stand_in.program.as_ref()) {
            let path = self.programs.join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// The guide, as it is followed here.
    pub(crate) fn adapted(&self, guide: &str) -> String {
        let guide = guide.replace("/usr/local/bin", &self.programs.display().to_string());
        let texts =
            self.stand_ins.iter().filter_map(|(word, stand_in)| Some((word, stand_in.text.as_ref()?)));
        texts.fold(guide, |guide, (word, text)| guide.replace(word, text))
    }

    pub(crate) fn preparation(&self) -> String {
        self.stand_ins.values().map(|stand_in| stand_in.preparation.as_str()).collect()
    }

    /// All that the guide's commands find in their environment.
    pub(crate) fn variables(&self) -> BTreeMap<String, String> {
        let ours = HANDED_ON.iter().filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?)));
        let given = self.stand_ins.values().flat_map(|stand_in| &stand_in.variables);
        // What the AWS command of version 1 calls it.
        let region = env::var("AWS_REGION").map(|region| ("AWS_DEFAULT_REGION".to_owned(), region));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.programs.display());
        ours.chain(given.map(|(name, value)| ((*name).to_owned(), value.clone())))
            .chain(region)
            .chain([("PATH".to_owned(), path), ("LANG".to_owned(), "C.UTF-8".to_owned())])
            .collect()
    }
}
