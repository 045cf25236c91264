//! The schemes of store URLs and their options, whether or not this build has the stores.

use super::option::Kind::{Duration, File, Switch, Text, Url, Variable, Word};
use super::option::{UrlOption, is_server_name, option};
use crate::types::is_unprintable;

/// The form of the URLs of a store.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub(super) name: &'static str,
    /// Other names, and the option with its value that each one implies.
    pub(super) aliases: &'static [(&'static str, Option<(&'static str, &'static str)>)],
    pub(super) location: Location,
    /// For a store whose URLs contain no login: where its credentials come from.
    pub(super) no_login: Option<&'static str>,
    pub(super) options: &'static [&'static [UrlOption]],
    /// Options that people expect, and the reasons why they do not exist.
    pub(super) missing: &'static [(&'static str, &'static str)],
}

/// The part of a URL between the scheme and the options.
#[derive(Clone, Copy, Debug)]
pub(super) enum Location {
    /// The path of a file.
    File,
    /// One or more hosts, separated by commas, and a path.
    Hosts {
        /// The default port.
        port: u16,
        /// The path that means the same as none.
        path: &'static str,
    },
    /// The name of a bucket or a table, and a path.
    Name,
}

/// Returns the scheme with this name.
pub(super) fn find(name: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|scheme| scheme.name == name)
}

/// Returns the scheme that has `alias`, and the option that the alias implies.
pub(super) fn of_alias(alias: &str) -> Option<(&'static str, Option<(&'static str, &'static str)>)> {
    let aliases = SCHEMES.iter().flat_map(|scheme| scheme.aliases.iter().map(|alias| (scheme.name, alias)));
    aliases.into_iter().find(|(_, (name, _))| *name == alias).map(|(name, (_, implied))| (name, *implied))
}

pub(super) fn names() -> Vec<&'static str> {
    SCHEMES.iter().map(|scheme| scheme.name).collect()
}

const MARGIN: UrlOption =
    option("margin", Duration(24), "`5s`", "the largest error of the store's clock").of_locks();
const CLOCK: &[UrlOption] = &[
    option("store_clock", Switch, "`on`", "`off`: the store's clock never ends the lease of a dead holder")
        .of_locks(),
    MARGIN,
];
const NO_CLOCK: &str = "no effect, because the store itself ends leases";
const UNUSED_CLOCK: &[UrlOption] = &[
    option("store_clock", Switch, "`on`", NO_CLOCK).of_locks(),
    option("margin", Duration(24), "`5s`", NO_CLOCK).of_locks(),
];
const PLAINTEXT: UrlOption =
    option("plaintext", Switch, "`off`", "`on`: allow secrets to be sent to another machine without TLS");
const PROXY: UrlOption = option("proxy", Url(&["env"]), "none", "an HTTP proxy, or `env` for HTTPS_PROXY");
const ENDPOINT: UrlOption =
    option("endpoint", Url(&[]), "the cloud's own", "another server with the same API").identity();
/// How stores over HTTP reach their server.
const HTTP: &[UrlOption] = &[
    PROXY,
    option("ca", File(&[]), "the system's", "PEM file of authorities to trust beside the system's"),
    PLAINTEXT,
];
/// How stores with connections reach their servers.
const TLS: &[UrlOption] = &[
    option(
        "ca",
        File(&[]),
        "the system's",
        "PEM file of the authorities that sign the servers' certificates",
    ),
    option("cert", File(&[]), "none", "PEM file of the client's certificate"),
    option("key", File(&[]), "in the file of `cert`", "PEM file of the key of `cert`").secret(),
    PLAINTEXT,
];
const TLS_ON_DEMAND: &[UrlOption] =
    &[option("tls", Switch, "on with another TLS option, else off", "use TLS, with verified certificates")];
const TLS_BEYOND_THIS_MACHINE: &[UrlOption] = &[option(
    "tls",
    Switch,
    "off if all hosts are this machine, else on",
    "use TLS, with verified certificates",
)];
const PASSWORD: &[UrlOption] = &[
    option("password_env", Variable, "none", "variable that contains the password").secret(),
    option("password_file", File(&[]), "none", "file that contains the password and nothing else").secret(),
];
const AWS: &[UrlOption] = &[
    option("region", Text(is_region, "a region", "eu-west-1"), "AWS_REGION, the profile", "the region")
        .identity_if_both(),
    option("endpoint", Url(&[]), "the AWS configuration, else Amazon", "another server with the same API")
        .identity(),
    option("profile", Text(is_some, "a profile", "ci"), "AWS_PROFILE", "a profile of ~/.aws/config"),
    option("fips", Switch, "the AWS configuration, else off", "use Amazon's FIPS endpoints"),
    option(
        "dualstack",
        Switch,
        "the AWS configuration, else off",
        "use endpoints that also have IPv6 addresses",
    ),
    option("ca", File(&[]), "AWS_CA_BUNDLE, else the system's", "PEM file of the only certificates to trust"),
    option("proxy", Url(&[]), "HTTPS_PROXY", "a proxy for requests that leave this machine"),
    PLAINTEXT,
];
const EXISTENCE: &[UrlOption] = &[option(
    "protocol",
    Word(&["lease", "existence"]),
    "`lease`",
    "`existence`: share locks with clients that create an object and delete it",
)
.identity()
.of_locks()];
const GRACE: &str = "how long no lock is granted after a failover; longer than the longest lease, or 0s";
const NOTIFY: UrlOption =
    option("notify", Switch, "`on`", "`off`: releases notify no waiter, and waiters only poll");
const LEASEHOLD_SERVE: &[&[UrlOption]] = &[
    &[option(
        "token_file",
        File(&[]),
        "LEASEHOLD_HTTP_TOKEN",
        "file that contains the token and nothing else",
    )
    .secret()],
    HTTP,
    UNUSED_CLOCK,
];
const SERVERS_CLOCK: (&str, &str) = (
    "store_clock",
    "the server's clock alone decides when a lease ends: keep it accurate (NTP without steps); `margin` is for small steps",
);
const TOKEN_ELSEWHERE: Option<&str> =
    Some("set LEASEHOLD_HTTP_TOKEN to the token, or name its file with ?token_file=/path");
const ROLE: Option<&str> = Some(
    "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role; a proxy's login \
     belongs in HTTPS_PROXY",
);

const PLAIN: Scheme =
    Scheme { name: "", aliases: &[], location: Location::Name, no_login: None, options: &[], missing: &[] };

pub(super) const SCHEMES: &[Scheme] = &[
    Scheme {
        name: "sqlite",
        location: Location::File,
        options: &[
            &[option(
                "allow_network",
                Switch,
                "`off`",
                "`on`: allow file systems that are not known to be local",
            )],
            UNUSED_CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "s3",
        no_login: ROLE,
        options: &[
            AWS,
            &[
                option(
                    "path_style",
                    Switch,
                    "on with an endpoint, else off",
                    "endpoint/bucket/key, not bucket.endpoint/key",
                ),
                option(
                    "checksum",
                    Word(&["none", "crc32", "crc32c", "sha256", "md5"]),
                    "`crc32`; `none` with an endpoint",
                    "the checksum of each write",
                ),
                option(
                    "sse",
                    Word(&["AES256", "aws:kms", "aws:kms:dsse"]),
                    "the bucket's",
                    "encryption by the store",
                ),
                option(
                    "kms_key",
                    Text(is_kms_key, "a KMS key", "alias/locks"),
                    "the account's aws/s3",
                    "a KMS key: its ARN, id or alias/name",
                ),
                option(
                    "expected_bucket_owner",
                    Text(is_account, "an account", "111122223333"),
                    "not checked",
                    "the account that must own the bucket",
                ),
                option(
                    "requester_pays",
                    Switch,
                    "`off`",
                    "`on`: you accept the charges of a requester-pays bucket",
                ),
            ],
            EXISTENCE,
            CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "dynamodb",
        no_login: ROLE,
        options: &[
            AWS,
            &[
                option("create", Switch, "`off`", "`on`: create the table if it does not exist"),
                option(
                    "dialect",
                    Word(&["java", "go"]),
                    "`java`",
                    "`go`: share the table with cirello.io/dynamolock",
                ),
                option(
                    "partition_key",
                    Text(is_attribute, "an attribute's name, of 1 to 255 bytes", "key"),
                    "the table's own",
                    "the name of the partition key",
                ),
                option(
                    "sse",
                    Word(&["aws:kms"]),
                    "DynamoDB's own key",
                    "new table: encrypt it with a key in KMS",
                ),
                option(
                    "kms_key",
                    Text(is_kms_key, "a KMS key", "alias/locks"),
                    "the account's aws/dynamodb",
                    "new table: its KMS key",
                ),
                option("pitr", Switch, "`off`", "`on`: point-in-time recovery"),
                option("deletion_protection", Switch, "`off`", "new table: protect it from deletion"),
                option(
                    "tags",
                    Text(are_tags, "tags with names", "team:infra,cost:42"),
                    "none",
                    "new table: its tags",
                ),
            ],
            CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "gs",
        no_login: Some("name a key file: ?credentials=/path/to/key.json, or GOOGLE_APPLICATION_CREDENTIALS"),
        options: &[
            &[
                ENDPOINT,
                option(
                    "credentials",
                    File(&["anonymous"]),
                    "Application Default Credentials",
                    "a key file, or `anonymous` for an emulator",
                )
                .secret(),
                option(
                    "impersonate",
                    Text(is_service_account, "a service account", "locks@my-project.iam.gserviceaccount.com"),
                    "the account of the credentials",
                    "the service account that makes the requests",
                ),
                option(
                    "user_project",
                    Text(is_project, "a project", "my-project"),
                    "the credentials'",
                    "the project that pays, by its id or number",
                ),
                option(
                    "kms_key",
                    Text(
                        is_cloud_kms_key,
                        "a Cloud KMS key",
                        "projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY",
                    ),
                    "the bucket's",
                    "the Cloud KMS key that encrypts the objects",
                ),
            ],
            HTTP,
            EXISTENCE,
            CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "azblob",
        no_login: Some(
            "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or name a file: ?key_file=/path or ?sas_file=/path",
        ),
        options: &[
            &[
                ENDPOINT,
                option(
                    "credentials",
                    Word(&["entra", "client_secret", "workload", "managed", "cli", "anonymous"]),
                    "the environment, else `entra`",
                    "the kind of identity; a key and a signature are named by `key_file` and `sas_file`",
                )
                .secret(),
                option("key_file", File(&[]), "none", "file with a key of the account").secret(),
                option("sas_file", File(&[]), "none", "file with a shared access signature").secret(),
                option(
                    "protocol",
                    Word(&["lease"]),
                    "records",
                    "`lease`: share locks with programs that use Azure's leases",
                )
                .identity()
                .of_locks(),
            ],
            HTTP,
            CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "etcd",
        location: Location::Hosts { port: 2379, path: "" },
        options: &[
            PASSWORD,
            TLS_ON_DEMAND,
            TLS,
            &[option(
                "server_name",
                Text(is_server_name, "a host's name or address", "etcd.example.com"),
                "the host",
                "the name that the members' certificates are for",
            )],
            UNUSED_CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "k8s",
        no_login: Some("name a kubeconfig (?kubeconfig=/path) or a file with a token (?token_file=/path)"),
        options: &[
            &[
                option("kubeconfig", File(&[]), "KUBECONFIG, the pod, ~/.kube/config", "a kubeconfig"),
                option(
                    "context",
                    Text(is_some, "a context", "prod"),
                    "the current one",
                    "a context of the kubeconfig",
                )
                .identity(),
                option("endpoint", Url(&[]), "the kubeconfig's", "an API server, instead of a kubeconfig")
                    .identity(),
                option("token_file", File(&[]), "none", "with `endpoint`: a file with a token").secret(),
            ],
            HTTP,
            CLOCK,
        ],
        ..PLAIN
    },
    Scheme {
        name: "postgres",
        aliases: &[("postgresql", None)],
        location: Location::Hosts { port: 5432, path: "" },
        options: &[
            &[
                option(
                    "table",
                    Text(is_table, "the name of a table, of at most 63 bytes", "locks.leasehold"),
                    "`leasehold`",
                    "the table, with its schema unless that is `public`",
                )
                .identity_without("public."),
                option("failover_grace", Duration(48), "`0s`", GRACE),
                NOTIFY,
            ],
            PASSWORD,
            TLS_BEYOND_THIS_MACHINE,
            TLS,
            &[MARGIN],
        ],
        missing: &[
            SERVERS_CLOCK,
            (
                "sslmode",
                "use tls=on, which is libpq's verify-full and the default, or tls=off. The other modes do not check that \
                 the certificate belongs to the host: name the authority with ca=FILE",
            ),
        ],
        ..PLAIN
    },
    Scheme {
        name: "redis",
        aliases: &[("rediss", Some(("tls", "on"))), ("valkey", None), ("valkeys", Some(("tls", "on")))],
        location: Location::Hosts { port: 6379, path: "/0" },
        options: &[
            &[
                option(
                    "prefix",
                    Text(
                        is_key_prefix,
                        "a prefix of at most 250 visible bytes, without `//` and a `/` at its beginning",
                        "locks/",
                    ),
                    "none",
                    "the beginning of the keys of all locks",
                )
                .identity(),
                option("failover_grace", Duration(48), "`60s`", GRACE),
                NOTIFY,
                option(
                    "master",
                    Text(is_master, "the name of a primary", "mymaster"),
                    "none",
                    "the hosts are Sentinels of it",
                )
                .identity(),
                option(
                    "sentinel_user",
                    Text(is_some, "a user", "locks"),
                    "the default user",
                    "the user at the Sentinels",
                ),
                option(
                    "sentinel_password_env",
                    Variable,
                    "none",
                    "variable with the password at the Sentinels",
                )
                .secret(),
                option(
                    "sentinel_password_file",
                    File(&[]),
                    "none",
                    "file with the password at the Sentinels",
                )
                .secret(),
            ],
            PASSWORD,
            TLS_ON_DEMAND,
            TLS,
            &[MARGIN],
        ],
        missing: &[SERVERS_CLOCK],
        ..PLAIN
    },
    Scheme {
        name: "https",
        location: Location::Hosts { port: 443, path: "" },
        no_login: TOKEN_ELSEWHERE,
        options: LEASEHOLD_SERVE,
        ..PLAIN
    },
    Scheme {
        name: "http",
        location: Location::Hosts { port: 80, path: "" },
        no_login: TOKEN_ELSEWHERE,
        options: LEASEHOLD_SERVE,
        ..PLAIN
    },
    Scheme { name: "mem", options: &[CLOCK], ..PLAIN },
];

fn is_some(text: &str) -> bool {
    !text.is_empty()
}

pub(crate) fn is_region(text: &str) -> bool {
    is_some(text) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Returns whether `text` is the id of an AWS account.
pub(crate) fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_kms_key(text: &str) -> bool {
    is_some(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b":/_-".contains(&b))
}

fn is_attribute(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.chars().any(is_unprintable)
}

fn are_tags(text: &str) -> bool {
    text.split(',').all(|tag| tag.split_once(':').is_some_and(|(name, _)| is_some(name)))
}

fn is_service_account(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._@".contains(&b))
        && text.split_once('@').is_some_and(|(name, host)| is_some(name) && host.contains('.'))
}

fn is_project(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b);
    (1..=100).contains(&text.len()) && text.bytes().all(fine)
}

fn is_cloud_kms_key(text: &str) -> bool {
    let fine = |part: &&str| {
        is_some(part) && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    let parts: Vec<_> = text.split('/').collect();
    let kinds: Vec<_> = parts.iter().step_by(2).copied().collect();
    kinds == ["projects", "locations", "keyRings", "cryptoKeys"]
        && parts.len() == 8
        && parts.iter().all(|p| fine(&p))
}

/// PostgreSQL truncates longer names.
fn is_table(text: &str) -> bool {
    let fine = |part: &str| {
        (1..=63).contains(&part.len()) && !part.contains('"') && !part.chars().any(is_unprintable)
    };
    text.split('.').count() <= 2 && text.split('.').all(fine)
}

/// Only leasehold's own keys contain `//`, so a prefix must not. Even with the longest name, the key is short.
fn is_key_prefix(text: &str) -> bool {
    text.len() <= 250 && !text.starts_with('/') && !text.contains("//") && !text.chars().any(is_unprintable)
}

fn is_master(text: &str) -> bool {
    is_some(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}
