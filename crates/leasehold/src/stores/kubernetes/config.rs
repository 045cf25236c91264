//! Reads the settings from a store URL and the environment: the namespace, and how to reach its server.

use std::path::{Path, PathBuf};

use super::access::{Access, Source};
use super::kubeconfig;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::over_http::transport::Transport;
use crate::url::{CheckedUrl, StoreUrl, checked_url};

/// The folder with the token and the authority of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The namespace of the requests, and its server.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub(super) namespace: String,
    /// The URL of the server, without `/` at its end.
    pub(super) server: String,
}

/// The settings in a store URL and the environment.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) access: Access,
    pub(super) namespace: String,
}

impl Location {
    /// Parses `url`, and sets `options` from it. `environment` returns the value of a variable.
    pub(super) fn from_url(
        url: StoreUrl,
        options: &mut StoreOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let path = url.url.path();
        if !matches!(path, "" | "/") {
            return Err(Error::invalid(format!("the Kubernetes store URL has a path: {path:?}")).with_help(
                "a Kubernetes store is k8s://namespace; separate locks by namespaces or by their names",
            ));
        }
        Ok(Self { access: access(&url, environment)?, namespace: url.name() })
    }
}

/// Reads the options for the server, the transport and the credentials.
fn access(url: &CheckedUrl, environment: impl Fn(&str) -> Option<String>) -> Result<Access, Error> {
    let variable = |name: &str| environment(name).filter(|text| !text.is_empty());
    let transport = Transport::of(url);
    let (endpoint, context) = (url.location("endpoint"), url.text("context"));
    let [token_file, named] = ["token_file", "kubeconfig"].map(|option| url.text(option).map(PathBuf::from));
    if let Some(endpoint) = endpoint {
        if named.is_some() || context.is_some() {
            return Err(Error::invalid("the store URL names an endpoint and a kubeconfig")
                .with_help("keep one of the options `endpoint` and `kubeconfig` (with `context`)"));
        }
        let source = token_file.map_or(Source::Connection, Source::File);
        return Access { server: endpoint, transport, authorities: None, identity: None, source }.checked();
    }
    if token_file.is_some() {
        return Err(Error::invalid("the store URL names a token, but no server to send it to")
            .with_help("add ?endpoint=https://host:6443, or name a kubeconfig instead"));
    }
    let listed = variable("KUBECONFIG").map(|list| std::env::split_paths(&list).collect::<Vec<_>>());
    let host = variable("KUBERNETES_SERVICE_HOST");
    let files = match (named, listed, host) {
        (Some(file), ..) => vec![file],
        (None, Some(files), _) => files,
        (None, None, Some(host)) if context.is_none() => {
            let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
            return in_cluster(&host, &port, transport, Path::new(SERVICE_ACCOUNT));
        }
        (None, None, _) => vec![kubeconfig_of_user(variable("HOME"))?],
    };
    kubeconfig::access(&files, context.as_deref(), transport)
}

/// Returns the access to the server of the pod that this process runs in.
fn in_cluster(host: &str, port: &str, transport: Transport, account: &Path) -> Result<Access, Error> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let server = checked_url(&format!("https://{host}:{port}"), "KUBERNETES_SERVICE_HOST")?;
    let (token, authorities) = (account.join("token"), account.join("ca.crt"));
    let read = std::fs::read(&authorities).map_err(|error| {
        Error::invalid(format!("this pod has no service account: {}: {error}", authorities.display()))
            .with_help(
                "set automountServiceAccountToken: true in the pod, or name a kubeconfig (?kubeconfig=)",
            )
    })?;
    let source = Source::File(token);
    Access { server, transport, authorities: Some(read), identity: None, source }.checked()
}

fn kubeconfig_of_user(home: Option<String>) -> Result<PathBuf, Error> {
    let file = home.map(|home| Path::new(&home).join(".kube/config"));
    file.filter(|file| file.exists()).ok_or_else(|| {
        Error::invalid("no Kubernetes server is configured: this is not a pod, and there is no ~/.kube/config").with_help(
            "set KUBECONFIG, or name a file or a server in the store URL: ?kubeconfig=/path or ?endpoint=https://host:6443",
        )
    })
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

    #[test]
    fn an_endpoint_is_used_as_it_is() {
        let url = "k8s://jobs?endpoint=https://h:6443/k8s/c-1/&token_file=/t&ca=/ca.pem&margin=9s";
        let Location { access, namespace } = read_with(url, &[("KUBECONFIG", "/none")]).unwrap();
        assert_eq!((namespace.as_str(), access.server.as_str()), ("jobs", "https://h:6443/k8s/c-1"));
        assert_eq!(access.source, Source::File("/t".into()));
        read_with("k8s://jobs?endpoint=http://h&token_file=/t&plaintext=on", &[]).unwrap();
        let url = "k8s://jobs?endpoint=http://127.0.0.1:8001";
        assert_eq!(read_with(url, &[]).unwrap().access.source, Source::Connection);
    }

    #[test]
    fn a_pod_uses_its_service_account() {
        let folder = tempfile::tempdir().unwrap();
        let of = || in_cluster("fd00::1", "443", Transport::default(), folder.path());
        assert!(of().unwrap_err().to_string().contains("no service account"));
        std::fs::write(folder.path().join("ca.crt"), "pem").unwrap();
        let access = of().unwrap();
        assert_eq!(access.server, "https://[fd00::1]:443");
        assert_eq!(access.authorities.as_deref(), Some(&b"pem"[..]));
        assert_eq!(access.source, Source::File(folder.path().join("token")));
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("k8s:", "no namespace"),
            ("k8s://Prod?endpoint=https://h", "Prod"),
            ("k8s://a.b?endpoint=https://h", "a.b"),
            ("k8s://jobs/x?endpoint=https://h", "path"),
            ("k8s://jobs?endpoint=https://h&context=x", "kubeconfig"),
            ("k8s://jobs?token_file=/t", "no server"),
            ("k8s://jobs?endpoint=http://h&token_file=/t", "unencrypted"),
            ("k8s://jobs", "no Kubernetes server"),
            ("k8s://jobs?kubeconfig=/none", "/none"),
        ] {
            let error = read_with(url, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            assert!(!error.help().is_empty(), "{url}: {error:?}");
        }
    }
}
