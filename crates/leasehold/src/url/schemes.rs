//! The schemes of store URLs and their options, whether or not this build has the stores.

use super::option::Kind::{Duration, File, Switch, Text, Url, Variable, Word};
use super::option::{UrlOption, is_server_name, option};
use crate::types::is_unprintable;

/// The form of the URLs of a store.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub(super) name: &'static str,
    /// What its URLs are like.
    pub(super) form: &'static str,
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
    /// The name of something, the check of the name, and a path.
    Name(&'static str, fn(&str) -> bool),
}

/// The help for a URL without a scheme.
pub(super) const EXAMPLES: &str =
    "use a URL like sqlite:/var/lib/locks.db or s3://bucket/prefix; see `leasehold help stores`";

/// Returns the scheme with this name.
pub(super) fn find(name: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|scheme| scheme.name == name)
}

/// Returns the scheme that has `alias`, and the option that the alias implies.
pub(super) fn of_alias(alias: &str) -> Option<(&'static str, Option<(&'static str, &'static str)>)> {
    let aliases = SCHEMES.iter().flat_map(|scheme| scheme.aliases.iter().map(|alias| (scheme.name, alias)));
    aliases.into_iter().find(|(_, (name, _))| *name == alias).map(|(name, (_, implied))| (name, *implied))
}

/// Groups of options: the name, the kind, the default, what the option does, and its marks.
macro_rules! options {
    ($($(#[$doc:meta])* $group:ident {
        $($name:literal: $kind:expr, $default:expr, $help:expr $(, $mark:ident $(($text:literal))?)*;)*
    })*) => {
        $($(#[$doc])* const $group: &[UrlOption] = &[
            $(option($name, $kind, $default, $help)$(.$mark($($text)?))*),*
        ];)*
    };
}

options! {
    CLOCK {
        "store_clock": Switch, "`on`", "`off`: the store's clock never ends the lease of a dead holder", of_locks;
        "margin": Duration(24), "`5s`", "the largest error of the store's clock", of_locks;
    }
    /// For stores that end leases themselves.
    UNUSED_CLOCK {
        "store_clock": Switch, "`on`", NO_CLOCK, of_locks;
        "margin": Duration(24), "`5s`", NO_CLOCK, of_locks;
    }
    /// For a store without a clock.
    NO_CLOCK_AT_ALL {
        "store_clock": Switch, "`on`", WITHOUT_CLOCK, of_locks;
        "margin": Duration(24), "`5s`", WITHOUT_CLOCK, of_locks;
    }
    /// For stores whose servers alone decide when a lease ends.
    SERVERS_CLOCK {
        "margin": Duration(24), "`5s`", "the largest step of the server's clock", of_locks;
    }
    NOTIFIES {
        "notify": Switch, "`on`", "`off`: releases notify no waiter, and waiters only poll", of_locks;
    }
    /// The one consent to plaintext.
    PLAINTEXT {
        "plaintext": Switch, "`off`", "`on`: allow secrets to be sent to another machine without TLS";
    }
    /// How stores over HTTP reach their server.
    HTTP {
        "proxy": Url(&["env"]), "none", "an HTTP proxy, or `env` for HTTPS_PROXY";
        "ca": File(&[]), "the system's", "PEM file of authorities to trust beside the system's";
    }
    /// How stores with connections reach their servers.
    TLS {
        "ca": File(&[]), "the system's", "PEM file of the authorities that sign the servers' certificates";
        "cert": File(&[]), "none", "PEM file of the client's certificate";
        "key": File(&[]), "in the file of `cert`", "PEM file of the key of `cert`", secret;
        "password_env": Variable, "none", "variable that contains the password", secret;
        "password_file": File(&[]), "none", "file that contains the password and nothing else", secret;
    }
    TLS_ON_DEMAND {
        "tls": Switch, "on with another TLS option, else off", "use TLS, with verified certificates";
    }
    TLS_BEYOND_THIS_MACHINE {
        "tls": Switch, "off if all hosts are this machine, else on", "use TLS, with verified certificates";
    }
    AWS {
        "region": Text(is_region, "a region", "eu-west-1"), "AWS_REGION, the profile", "the region", if_both;
        "endpoint": Url(&[]), "the AWS configuration, else Amazon", "another server with the same API", identity("");
        "profile": Text(is_some, "a profile", "ci"), "AWS_PROFILE", "a profile of ~/.aws/config";
        "fips": Switch, "the AWS configuration, else off", "use Amazon's FIPS endpoints";
        "dualstack": Switch, "the AWS configuration, else off", "use endpoints that also have IPv6 addresses";
        "ca": File(&[]), "AWS_CA_BUNDLE, else the system's", "PEM file of the only certificates to trust";
        "proxy": Url(&[]), "HTTPS_PROXY", "a proxy for requests that leave this machine";
        "kms_key": Text(is_kms_key, "a KMS key", "alias/locks"), "the account's", "KMS key: its ARN, id or alias/name";
    }
    S3 {
        "path_style": Switch, "on with an endpoint, else off", "endpoint/bucket/key, not bucket.endpoint/key";
        "checksum": Word(&["none", "crc32", "crc32c", "sha256", "md5"]), "`crc32`; `none` with an endpoint",
            "the checksum of each write";
        "sse": Word(&["AES256", "aws:kms", "aws:kms:dsse"]), "the bucket's", "encryption by the store";
        "expected_bucket_owner": Text(is_account, "an account", "111122223333"), "not checked",
            "the account that must own the bucket";
        "requester_pays": Switch, "`off`", "`on`: you accept the charges of a requester-pays bucket";
    }
    EXISTENCE {
        "protocol": Word(&["lease", "existence"]), "`lease`",
            "`existence`: share locks with clients that create an object and delete it", identity(""), of_locks;
    }
    DYNAMODB {
        "create": Switch, "`off`", "`on`: create the table if it does not exist";
        "dialect": Word(&["java", "go"]), "`java`", "`go`: share the table with cirello.io/dynamolock";
        "partition_key": Text(is_attribute, "an attribute's name, of 1 to 255 bytes", "key"), "the table's own",
            "the name of the partition key";
        "sse": Word(&["aws:kms"]), "DynamoDB's own key", "new table: encrypt it with a key in KMS";
        "pitr": Switch, "`off`", "`on`: point-in-time recovery";
        "deletion_protection": Switch, "`off`", "new table: protect it from deletion";
        "tags": Text(are_tags, "tags with names", "team:infra,cost:42"), "none", "new table: its tags";
    }
    GCS {
        "endpoint": Url(&[]), "STORAGE_EMULATOR_HOST, else Google's", "another server with the same API", identity("");
        "credentials": File(&["anonymous"]), "Application Default Credentials",
            "a key file, or `anonymous` for an emulator", secret;
        "impersonate": Text(is_service_account, "a service account", "locks@my-project.iam.gserviceaccount.com"),
            "the account of the credentials", "the service account that makes the requests";
        "user_project": Text(is_project, "a project", "my-project"), "the credentials'",
            "the project that pays, by its id or number";
        "kms_key": Text(is_cloud_kms_key, "a Cloud KMS key", "projects/P/locations/L/keyRings/R/cryptoKeys/K"),
            "the bucket's", "the Cloud KMS key that encrypts the objects";
    }
    AZURE {
        "endpoint": Url(&[]), "Azure's own", "another server with the same API", identity("");
        "credentials": Word(&["entra", "client_secret", "workload", "managed", "cli", "anonymous"]),
            "the environment, else `entra`", "the kind of identity; `key_file` and `sas_file` name a secret", secret;
        "key_file": File(&[]), "none", "file with a key of the account", secret;
        "sas_file": File(&[]), "none", "file with a shared access signature", secret;
        "protocol": Word(&["lease"]), "records", "`lease`: share locks with programs that use Azure's leases",
            identity(""), of_locks;
    }
    ETCD {
        "server_name": Text(is_server_name, "a host's name or address", "etcd.example.com"), "the host",
            "the name that the members' certificates are for";
    }
    KUBERNETES {
        "kubeconfig": File(&[]), "KUBECONFIG, the pod, ~/.kube/config", "a kubeconfig";
        "context": Text(is_some, "a context", "prod"), "the current one", "a context of the kubeconfig", identity("");
        "endpoint": Url(&[]), "the kubeconfig's", "an API server, instead of a kubeconfig", identity("");
        "token_file": File(&[]), "none", "with `endpoint`: a file with a token", secret;
    }
    MYSQL {
        "table": Text(is_mysql_table, "the name of a table, of at most 63 bytes", "locks"), "`leasehold`",
            "the table", identity("");
        "failover_grace": Duration(48), "`0s`", GRACE, of_locks;
    }
    POSTGRES {
        "table": Text(is_table, "the name of a table, of at most 63 bytes", "locks.leasehold"), "`leasehold`",
            "the table, with its schema unless that is `public`", identity("public.");
        "failover_grace": Duration(48), "`0s`", GRACE, of_locks;
    }
    REDIS {
        "prefix": Text(is_key_prefix, "at most 250 visible bytes, without `//` and a `/` at the beginning", "locks/"),
            "none", "the beginning of the keys of all locks", identity("");
        // Longer than the default lease with its margin, and the ten seconds after which Redis gives up replicas.
        "failover_grace": Duration(48), "`60s`", GRACE, of_locks;
        "cluster": Switch, "`off`", "`on`: the hosts are servers of a Redis Cluster", identity("");
        "master": Text(is_master, "the name of a primary", "mymaster"), "none",
            "the hosts are Sentinels, which know the primary by this name", identity("");
        "sentinel_user": Text(is_some, "a user", "locks"), "the default user", "the user at the Sentinels";
        "sentinel_password_env": Variable, "none", "variable with the password at the Sentinels", secret;
        "sentinel_password_file": File(&[]), "none", "file with the password at the Sentinels", secret;
    }
    NATS {
        "prefix": Text(is_subject_prefix, "at most 250 letters, digits and `-/_=.`, without empty parts", "locks"),
            "none", "the beginning of the keys of all locks", identity("");
        "creds_file": File(&[]), "none", "file with a user's JWT and nkey, as nsc writes it", secret;
        "nkey_file": File(&[]), "none", "file with the seed of a user's nkey", secret;
    }
    SERVE {
        "token_file": File(&[]), "LEASEHOLD_HTTP_TOKEN", "file that contains the token and nothing else", secret;
    }
    SQLITE {
        "allow_network": Switch, "`off`", "`on`: allow file systems that are not known to be local";
    }
}

const NO_CLOCK: &str = "no effect, because the store itself ends leases";
const WITHOUT_CLOCK: &str = "no effect, because no clock of the store ends a lease";
const GRACE: &str = "how long no lock is granted after a failover: longer than the longest lease, or 0s";

const NO_STORE_CLOCK: (&str, &str) = (
    "store_clock",
    "the server's clock alone decides when a lease ends: keep it accurate (NTP without steps); `margin` is for small steps",
);
const NO_SSLMODE: (&str, &str) = (
    "sslmode",
    "use tls=on, which is libpq's verify-full and the default, or tls=off. The other modes do not check that the \
     certificate belongs to the host: name the authority with ca=FILE",
);
/// The table: the name, the location, the source of credentials if URLs have no login, options, aliases, missing options,
/// and the form.
macro_rules! schemes {
    ($($name:literal, $location:expr, $no_login:expr, $options:expr, $aliases:expr, $missing:expr, $form:expr;)*) => {
        pub(super) const SCHEMES: &[Scheme] = &[$(Scheme {
            name: $name,
            form: $form,
            aliases: &$aliases,
            location: $location,
            no_login: $no_login,
            options: &$options,
            missing: &$missing,
        }),*];
    };
}

schemes! {
    "sqlite", Location::File, None, [SQLITE, UNUSED_CLOCK], [], [], "a SQLite store is sqlite:/path/to/locks.db";
    "dir", Location::File, None, [NO_CLOCK_AT_ALL], [], [], "a directory store is dir:/mnt/efs/locks, a path that the machines share";
    "s3", Location::Name("bucket", is_s3_bucket), ROLE, [AWS, S3, PLAINTEXT, EXISTENCE, CLOCK], [], [],
        "an S3 store is s3://my-bucket/team/locks; a bucket name has 3 to 63 lower-case letters, digits, `-` and `.`";
    "dynamodb", Location::Name("table", is_table_or_arn), ROLE, [AWS, DYNAMODB, PLAINTEXT, CLOCK], [], [],
        "a DynamoDB store is dynamodb://table/prefix, for example dynamodb://locks/team; a table name has 3 to 255 letters, \
         digits, `_`, `-` and `.`";
    "gs", Location::Name("bucket", is_gcs_bucket), KEY_FILE, [GCS, HTTP, PLAINTEXT, EXISTENCE, CLOCK], [], [],
        "a GCS store is gs://my-bucket/team/locks; a bucket name has 3 to 63 lower-case letters, digits, `-`, `_` and `.`";
    "azblob", Location::Name("storage account", is_azure_account), AZURE_KEY, [AZURE, HTTP, PLAINTEXT, CLOCK], [], [],
        "an Azure store is azblob://account/container/team/locks; an account's name has 3 to 24 lower-case letters and \
         digits, without the -secondary of an endpoint that may be outdated";
    "etcd", hosts(2379, ""), None, [TLS_ON_DEMAND, TLS, ETCD, PLAINTEXT, UNUSED_CLOCK], [], [],
        "an etcd store is etcd://host:2379,host2:2379/prefix/, for example etcd://host:2379/team/locks/";
    "k8s", Location::Name("namespace", is_label), KUBECONFIG, [KUBERNETES, HTTP, PLAINTEXT, CLOCK], [], [],
        "a Kubernetes store is k8s://namespace; a namespace has at most 63 lower-case letters, digits and `-`";
    "mysql", hosts(3306, ""), None, [MYSQL, TLS_BEYOND_THIS_MACHINE, TLS, PLAINTEXT, SERVERS_CLOCK], [("mariadb", None)],
        [NO_STORE_CLOCK], "a MySQL or MariaDB store is mysql://user@host:3306/database?table=leasehold";
    "postgres", hosts(5432, ""), None, [POSTGRES, TLS_BEYOND_THIS_MACHINE, TLS, PLAINTEXT, SERVERS_CLOCK, NOTIFIES],
        [("postgresql", None)], [NO_STORE_CLOCK, NO_SSLMODE],
        "a PostgreSQL store is postgres://user@host:5432/database?table=leasehold";
    "redis", hosts(6379, "/0"), None, [REDIS, TLS_ON_DEMAND, TLS, PLAINTEXT, SERVERS_CLOCK, NOTIFIES],
        [("rediss", WITH_TLS), ("valkey", None), ("valkeys", WITH_TLS)], [NO_STORE_CLOCK],
        "a Redis store is redis://user@host:6379/0?prefix=locks/";
    "nats", hosts(4222, ""), None, [NATS, TLS_ON_DEMAND, TLS, PLAINTEXT, CLOCK], [], [],
        "a NATS store is nats://host:4222/bucket?prefix=locks, where `bucket` is a key-value bucket of JetStream";
    "https", hosts(443, ""), TOKEN, [SERVE, HTTP, PLAINTEXT, UNUSED_CLOCK], [], [], SERVER;
    "http", hosts(80, ""), TOKEN, [SERVE, HTTP, PLAINTEXT, UNUSED_CLOCK], [], [], SERVER;
    "mem", Location::Name("", |_| true), None, [CLOCK], [], [], "write mem:";
}

const WITH_TLS: Option<(&str, &str)> = Some(("tls", "on"));
const SERVER: &str = "the URL of a server is like https://locks.example.com or http://127.0.0.1:7420";
const TOKEN: Option<&str> =
    Some("set LEASEHOLD_HTTP_TOKEN to the token, or name its file with ?token_file=/path");
const KEY_FILE: Option<&str> =
    Some("name a key file: ?credentials=/path/to/key.json, or GOOGLE_APPLICATION_CREDENTIALS");
const AZURE_KEY: Option<&str> = Some(
    "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or name a file: ?key_file=/path or ?sas_file=/path",
);
const KUBECONFIG: Option<&str> =
    Some("name a kubeconfig (?kubeconfig=/path) or a file with a token (?token_file=/path)");
const ROLE: Option<&str> = Some(
    "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role; a proxy's login \
     belongs in HTTPS_PROXY",
);

const fn hosts(port: u16, path: &'static str) -> Location {
    Location::Hosts { port, path }
}

/// Returns whether `text` has a length in `range`, consists of lower-case letters, digits and `marks`, and has no mark
/// at either end.
pub(crate) fn is_name(text: &str, range: std::ops::RangeInclusive<usize>, marks: &[u8]) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    range.contains(&text.len())
        && text.bytes().next().is_some_and(plain)
        && text.bytes().next_back().is_some_and(plain)
        && text.bytes().all(|b| plain(b) || marks.contains(&b))
}

/// The ARN of an access point is checked with the path after it.
fn is_s3_bucket(text: &str) -> bool {
    text.starts_with("arn:") || is_name(text, 3..=63, b"-.") && !text.contains("..")
}

fn is_gcs_bucket(text: &str) -> bool {
    is_name(text, 3..=222, b"-_.") && text.split('.').all(|part| (1..=63).contains(&part.len()))
}

fn is_azure_account(text: &str) -> bool {
    is_name(text, 3..=24, b"")
}

#[allow(dead_code, reason = "only Azure has containers")]
pub(crate) fn is_azure_container(text: &str) -> bool {
    is_name(text, 3..=63, b"-") && !text.contains("--")
}

pub(crate) fn is_dynamodb_table(text: &str) -> bool {
    (3..=255).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

fn is_table_or_arn(text: &str) -> bool {
    is_dynamodb_table(text) || text.starts_with("arn:")
}

fn is_label(text: &str) -> bool {
    is_name(text, 1..=63, b"-")
}

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
    kinds == ["projects", "locations", "keyRings", "cryptoKeys"] && parts.len() == 8 && parts.iter().all(fine)
}

/// PostgreSQL truncates longer names.
fn is_table(text: &str) -> bool {
    let fine = |part: &str| {
        (1..=63).contains(&part.len()) && !part.contains('"') && !part.chars().any(is_unprintable)
    };
    text.split('.').count() <= 2 && text.split('.').all(fine)
}

fn is_mysql_table(text: &str) -> bool {
    is_table(text) && !text.ends_with(' ') && !text.chars().any(|c| "`./\\".contains(c))
}

/// Only leasehold's own keys contain `//`, so a prefix must not. Even with the longest name, the key is short.
fn is_key_prefix(text: &str) -> bool {
    text.len() <= 250 && !text.starts_with('/') && !text.contains("//") && !text.chars().any(is_unprintable)
}

/// The part of a subject before the keys. A subject has no empty tokens.
fn is_subject_prefix(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-/_=.".contains(&b);
    is_key_prefix(text) && text.bytes().all(fine) && !text.split('.').any(str::is_empty)
}

fn is_master(text: &str) -> bool {
    is_some(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::*;

    /// What decides about a name, names that are fine, and others.
    type Check = (fn(&str) -> bool, &'static [&'static str], &'static [&'static str]);

    /// Checks the lengths of names, and a few names that are fine or not.
    fn check(is: fn(&str) -> bool, lengths: RangeInclusive<usize>, fine: &[&str], wrong: &[&str]) {
        let (least, most) = (*lengths.start(), *lengths.end());
        let name = |length| "a".repeat(length);
        assert!(is(&name(least)) && is(&name(most)), "{lengths:?}: {fine:?}");
        assert!(!is(&name(most + 1)) && (least == 0 || !is(&name(least - 1))), "{lengths:?}: {fine:?}");
        decides(is, fine, wrong);
    }

    fn decides(is: fn(&str) -> bool, fine: &[&str], wrong: &[&str]) {
        fine.iter().for_each(|name| assert!(is(name), "{name:?}"));
        wrong.iter().for_each(|name| assert!(!is(name), "{name:?} among {wrong:?}"));
    }

    /// A name that its server would refuse is an error before anything is locked.
    #[test]
    fn names_in_urls_are_those_that_their_servers_accept() {
        check(is_s3_bucket, 3..=63, &["a-b.c", "arn:x"], &["a..b", "A-b", "-ab", "ab-", "a_b"]);
        check(is_gcs_bucket, 3..=63, &["a_b-c.d"], &["a..b", "-ab", "ab-"]);
        let part = "a".repeat(63);
        let longest = format!("{part}.{part}.{part}.{}", "a".repeat(30));
        assert!(is_gcs_bucket(&longest) && !is_gcs_bucket(&format!("{longest}a")));
        check(is_azure_account, 3..=24, &["a1b"], &["a-b", "A1b"]);
        check(is_azure_container, 3..=63, &["a-b"], &["a--b", "a.b"]);
        check(is_dynamodb_table, 3..=255, &["A_b-.", "---"], &["a b", "a/b"]);
        check(is_table_or_arn, 3..=255, &["arn:aws:x/y"], &["a/b"]);
        check(is_label, 1..=63, &["a-b"], &["-a", "a-", "a.b"]);
        check(is_attribute, 1..=255, &["a b"], &["a\nb"]);
        check(is_project, 1..=100, &["a.b:c-1"], &["A", "a_b"]);
        check(is_table, 1..=63, &["a.b", "\u{e4} b"], &["a.b.c", "a.", "a\"b", "a\nb"]);
        check(is_mysql_table, 1..=63, &["a b"], &["a ", "a`b", "a/b", "a\\b", "a.b", "a\nb"]);
        check(is_key_prefix, 0..=250, &["a/b"], &["/a", "a//b", "a\nb"]);
        check(is_subject_prefix, 1..=250, &["a/b.c_=-"], &["a b", "a..b", ".a", "a//b"]);

        let checks: [Check; 7] = [
            (is_region, &["eu-west-1"], &["", "EU", "a_b"]),
            (is_account, &["123456789012"], &["12345678901", "1234567890123", "12345678901a"]),
            (is_kms_key, &["alias/a_b-C", "arn:aws:kms:1"], &["", "a b"]),
            (are_tags, &["a:b,c:"], &["", "a", ":b", "a:b,"]),
            (is_service_account, &["a-b@c.d"], &["@c.d", "a@c", "a.b", "a b@c.d"]),
            (
                is_cloud_kms_key,
                &["projects/a.b:c/locations/l/keyRings/r/cryptoKeys/k"],
                &[
                    "projects/p/locations/l/keyRings/r/cryptoKeys/k/x",
                    "projects/p/locations/l/keyRings/r/cryptoKeys",
                    "projects//locations/l/keyRings/r/cryptoKeys/k",
                    "projects/p q/locations/l/keyRings/r/cryptoKeys/k",
                    "folders/p/locations/l/keyRings/r/cryptoKeys/k",
                ],
            ),
            (is_master, &["a._-B"], &["", "a b"]),
        ];
        for (is, fine, wrong) in checks {
            decides(is, fine, wrong);
        }
    }
}
