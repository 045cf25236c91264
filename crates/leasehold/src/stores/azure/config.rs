//! Parses the settings in a store URL and the environment: where requests go, and with which credentials.

use std::fmt;
use std::path::PathBuf;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::buckets::{Keys, MAX_PREFIX_BYTES, checked_object};
use crate::stores::over_http::transport::Transport;
use crate::url::{CheckedUrl, StoreUrl, is_azure_container};

/// The variables from which Azure's own command reads the key of an account and a shared access signature.
const KEY: &str = "AZURE_STORAGE_KEY";
const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";

/// The account of every emulator, and its key, which Azure publishes.
const EMULATED: &str = "devstoreaccount1";
const EMULATED_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// The source of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A key of the account.
    Key(Secret),
    /// A shared access signature.
    Sas(Secret),
    /// An access token of Microsoft Entra ID.
    Entra(Identity),
    /// No credentials, for containers that anyone may read and for tests.
    Anonymous,
}

/// A secret, or the file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    Text(String),
    /// A file, which is read again after a refusal.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// The identity that requests an access token of Microsoft Entra ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The identity that the environment describes.
    Environment,
    /// An application with a secret.
    ClientSecret,
    /// A pod with a federated token.
    Workload,
    /// The managed identity of this machine or service.
    Managed,
    /// The user who ran `az login`.
    Cli,
}

/// The container to which requests go.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub(super) account: String,
    pub(super) container: String,
    /// The base URL of the account's containers, without `/` at the end.
    pub(super) base: String,
}

impl Target {
    /// Whether the endpoint is known to honour preconditions. Azure documents this for its own endpoints.
    pub(super) fn is_trusted(&self) -> bool {
        let host = self.base.strip_prefix("https://").unwrap_or("");
        let zones = [
            ".blob.core.windows.net",
            ".blob.core.chinacloudapi.cn",
            ".blob.core.usgovcloudapi.net",
            ".blob.storage.azure.net",
        ];
        zones.iter().any(|zone| host.ends_with(zone))
    }
}

/// Where and how requests are sent, and with which credentials.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) target: Target,
    pub(super) transport: Transport,
    pub(super) source: Source,
}

/// The settings in a store URL and the environment.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) access: Access,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    /// Whether locks are Azure's own leases of blobs, and not records.
    pub(super) by_lease: bool,
}

impl Location {
    /// Returns the keys of the locks.
    pub(super) fn keys(&self) -> Keys {
        match self.by_lease {
            false => Keys::below(&self.prefix),
            // Other programs do not know leasehold's encoding.
            true => Keys::verbatim(&self.prefix),
        }
    }

    /// Parses `url`, and applies its common settings to `options`. `environment` returns the value of a variable.
    pub(super) fn from_url(
        url: StoreUrl,
        options: &mut StoreOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let (access, path) = Access::of(&url, environment)?;
        let prefix = url.prefix(&path, MAX_PREFIX_BYTES)?;
        Ok(Self { access, prefix, by_lease: url.text("protocol").is_some() })
    }

    /// Parses `url` as the URL of an object. Returns the location of its folder, and its key there.
    pub(super) fn of_object(
        url: StoreUrl,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, String), Error> {
        let (access, path) = Access::of(&url.checked_object()?, environment)?;
        let (prefix, key) = checked_object(&path)?;
        Ok((Self { access, prefix, by_lease: false }, key))
    }
}

impl Access {
    /// Reads the access settings. Also returns the path below the container.
    fn of(url: &CheckedUrl, environment: impl Fn(&str) -> Option<String>) -> Result<(Self, String), Error> {
        let account = url.name();
        let path = url.url.path().strip_prefix('/').unwrap_or(url.url.path());
        let (container, path) = path.split_once('/').unwrap_or((path, ""));
        let (container, path) = (checked_container(container)?, path.to_owned());
        let base = match url.location("endpoint") {
            Some(endpoint) => base_at(&checked_endpoint(endpoint)?, &account),
            None => format!("https://{account}.blob.core.windows.net"),
        };
        let (source, transport) = (source(url, &account, environment)?, Transport::of(url));
        if matches!(source, Source::Sas(_) | Source::Entra(_)) {
            transport.check_secrecy(&base, "credentials").map_err(|error| {
                error.with_help("or use a key of the account, which signs requests and is not sent")
            })?;
        }
        Ok((Self { target: Target { account, container, base }, transport, source }, path))
    }
}

/// Returns the base URL of the containers. If the endpoint's host is an address, the account is part of the path, as in
/// Azurite. If the host is a name, the name contains the account, as at Azure.
fn base_at(endpoint: &str, account: &str) -> String {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    let is_address = host.starts_with('[')
        || host.starts_with("localhost")
        || host.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b':');
    if is_address { format!("{endpoint}/{account}") } else { endpoint.to_owned() }
}

fn source(
    url: &CheckedUrl,
    account: &str,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Source, Error> {
    let file = |option| url.text(option).map(|path| Secret::File(PathBuf::from(path)));
    let identities = [
        ("anonymous", Source::Anonymous),
        ("entra", Source::Entra(Identity::Environment)),
        ("client_secret", Source::Entra(Identity::ClientSecret)),
        ("workload", Source::Entra(Identity::Workload)),
        ("managed", Source::Entra(Identity::Managed)),
        ("cli", Source::Entra(Identity::Cli)),
    ];
    let identity = url.word("credentials", &identities);
    let sources = [file("key_file").map(Source::Key), file("sas_file").map(Source::Sas), identity];
    let mut named: Vec<_> = sources.into_iter().flatten().collect();
    if named.len() > 1 {
        return Err(Error::invalid("the store URL names several sources of credentials")
            .with_help("keep one of the options `credentials`, `key_file` and `sas_file`"));
    }
    if let Some(named) = named.pop() {
        return Ok(named);
    }
    let variable = |name: &str| environment(name).filter(|text| !text.is_empty()).map(Secret::Text);
    Ok(match (variable(KEY), variable(SAS)) {
        (Some(key), _) => Source::Key(key),
        (None, Some(sas)) => Source::Sas(sas),
        (None, None) if account == EMULATED => Source::Key(Secret::Text(EMULATED_KEY.to_owned())),
        (None, None) => Source::Entra(Identity::Environment),
    })
}

fn checked_container(container: &str) -> Result<String, Error> {
    if is_azure_container(container) {
        return Ok(container.to_owned());
    }
    let error = Error::invalid(match container {
        "" => "the Azure store URL names no container".to_owned(),
        _ => format!("{container:?} is not the name of a container"),
    });
    Err(error.with_help(
        "an Azure store is azblob://account/container/prefix; a container's name has 3 to 63 lower-case letters, digits \
         and single `-`",
    ))
}

fn checked_endpoint(endpoint: String) -> Result<String, Error> {
    if endpoint.split_once("://").is_some_and(|(_, host)| host.contains('/')) {
        return Err(Error::invalid(format!("the option `endpoint` is {endpoint:?}, which has a path"))
            .with_help("name only the host: endpoint=http://127.0.0.1:10000"));
    }
    if endpoint.contains("-secondary.") {
        return Err(Error::invalid(format!("{endpoint:?} is the secondary endpoint of an account"))
            .with_help("locks need the primary one, because the secondary shows outdated contents"));
    }
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read_with(url: &str, variables: &[(&str, &str)]) -> Result<Location, Error> {
        let environment =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, text)| (*text).to_owned());
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default(), environment)
    }

    fn read(url: &str) -> Result<Location, Error> {
        read_with(url, &[])
    }

    #[test]
    fn a_url_names_the_store_and_its_options() {
        let location = read("azblob://acct1/locks/team/x/?key_file=/k&proxy=env&ca=/ca.pem").unwrap();
        let Access { target, transport, source } = location.access;
        assert_eq!((target.account.as_str(), target.container.as_str()), ("acct1", "locks"));
        assert_eq!(target.base, "https://acct1.blob.core.windows.net");
        assert_eq!(location.prefix, "team/x");
        assert_eq!(source, Source::Key(Secret::File("/k".into())));
        assert_eq!(transport.authorities, Some("/ca.pem".into()));
        for (endpoint, base) in [
            ("http://127.0.0.1:10000", "http://127.0.0.1:10000/acct1"),
            ("http://[::1]:10000", "http://[::1]:10000/acct1"),
            ("http://localhost:10000/", "http://localhost:10000/acct1"),
            ("https://acct1.blob.core.chinacloudapi.cn", "https://acct1.blob.core.chinacloudapi.cn"),
        ] {
            let location = read(&format!("azblob://acct1/locks?endpoint={endpoint}")).unwrap();
            assert_eq!((location.access.target.base.as_str(), location.prefix.as_str()), (base, ""));
        }
        let (object, key) =
            Location::of_object(StoreUrl::parse("azblob://acct1/c00/a/b.json").unwrap(), |_| None).unwrap();
        assert_eq!((object.prefix.as_str(), key.as_str()), ("a", "b.json"));
    }

    #[test]
    fn credentials_come_from_the_url_or_the_environment() {
        let url = "azblob://acct1/locks";
        let text = |text: &str| Secret::Text(text.to_owned());
        for (url, variables, source) in [
            (url, &[][..], Source::Entra(Identity::Environment)),
            (url, &[(KEY, "k"), (SAS, "s")], Source::Key(text("k"))),
            (url, &[(KEY, ""), (SAS, "s")], Source::Sas(text("s"))),
            ("azblob://acct1/locks?credentials=managed", &[(KEY, "k")], Source::Entra(Identity::Managed)),
            ("azblob://acct1/locks?sas_file=/s", &[(KEY, "k")], Source::Sas(Secret::File("/s".into()))),
            ("azblob://devstoreaccount1/locks", &[], Source::Key(text(EMULATED_KEY))),
            ("azblob://devstoreaccount1/locks?credentials=anonymous", &[], Source::Anonymous),
        ] {
            assert_eq!(read_with(url, variables).unwrap().access.source, source, "{url} {variables:?}");
        }
        assert!(!format!("{:?}", read_with(url, &[(KEY, "hunter2")])).contains("hunter2"));
    }

    #[test]
    fn tokens_and_signatures_are_not_sent_in_the_clear() {
        let url = "azblob://acct1/locks?endpoint=http://example.com";
        for option in ["&credentials=entra", "&sas_file=/s", ""] {
            let error = read(&format!("{url}{option}")).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
        }
        read(&format!("{url}&key_file=/k")).unwrap();
        read("azblob://acct1/locks?endpoint=http://127.0.0.1:9&sas_file=/s").unwrap();
        read(&format!("{url}&sas_file=/s&plaintext=on")).unwrap();
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("azblob:", "no storage account"),
            ("azblob://acct1", "no container"),
            ("azblob://Acct/locks", "Acct"),
            ("azblob://acct1-secondary/locks", "secondary"),
            ("azblob://acct1/locks?endpoint=https://acct1-secondary.blob.core.windows.net", "secondary"),
            ("azblob://acct1/a--b", "a--b"),
            ("azblob://acct1/-ab", "-ab"),
            ("azblob://acct1/ab", "\"ab\""),
            ("azblob://acct1/locks/a//b", "segment"),
            ("azblob://acct1/locks?endpoint=http://127.0.0.1:1/acct1", "path"),
            ("azblob://acct1/locks?key_file=/k&sas_file=/s", "several"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            assert!(!error.help().is_empty(), "{url}: {error:?}");
        }
    }

    #[test]
    fn only_azures_own_endpoints_are_trusted() {
        for (base, trusted) in [
            ("https://a.blob.core.windows.net", true),
            ("https://a.z01.blob.storage.azure.net", true),
            ("https://a.blob.core.usgovcloudapi.net", true),
            ("http://a.blob.core.windows.net", false),
            ("https://a.blob.core.windows.net.example.com", false),
            ("http://127.0.0.1:10000/devstoreaccount1", false),
        ] {
            assert_eq!(Target { base: base.into(), ..Target::default() }.is_trusted(), trusted, "{base}");
        }
    }
}
