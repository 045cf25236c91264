//! Reads the files of kubectl, which describe clusters and logins.

use std::path::{Path, PathBuf};

use base64::Engine;
use serde::Deserialize;

use super::access::{Access, Plugin, Secret, Source};
use crate::error::Error;
use crate::stores::over_http::transport::{Proxy, Transport};
use crate::url::checked_url;

#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    #[serde(rename = "current-context")]
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<Exec>,
    username: Option<String>,
    auth_provider: Option<serde::de::IgnoredAny>,
    #[serde(rename = "as")]
    impersonated: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    api_version: String,
    command: PathBuf,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<Variable>>,
    #[serde(default)]
    install_hint: Option<String>,
    #[serde(default)]
    interactive_mode: Option<String>,
    #[serde(default)]
    provide_cluster_info: bool,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// An entry, and the folder of its file. Paths in the entry are relative to that folder.
struct Entry<T> {
    value: T,
    folder: PathBuf,
}

impl<T> Entry<T> {
    /// Returns the bytes of a file, or those in base64 in the kubeconfig itself.
    fn bytes(&self, what: &str, data: Option<&str>, path: Option<&Path>) -> Result<Option<Vec<u8>>, Error> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let engine = base64::engine::general_purpose::STANDARD;
            let bytes = engine.decode(data.trim());
            return bytes.map(Some).map_err(|_| invalid(&format!("{what}-data is not in base64")));
        }
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(None) };
        let path = self.folder.join(path);
        std::fs::read(&path)
            .map(Some)
            .map_err(|error| invalid(&format!("{what}: {} cannot be read: {error}", path.display())))
    }
}

/// Returns the access that the kubeconfig in `files` describes, in `context` or in its current context. If several
/// entries have the same name, the first one counts, as in kubectl.
pub(super) fn access(
    files: &[PathBuf],
    context: Option<&str>,
    transport: Transport,
) -> Result<Access, Error> {
    let (mut current, mut clusters, mut users, mut contexts) = (None, Vec::new(), Vec::new(), Vec::new());
    for path in files {
        let file = read(path)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let entry = |name, value| (name, folder.to_owned(), value);
        current = current.or(file.current_context.filter(|name| !name.is_empty()));
        let found = file.clusters.unwrap_or_default().into_iter();
        clusters.extend(found.map(|named| entry(named.name, named.cluster)));
        let found = file.users.unwrap_or_default().into_iter();
        users.extend(found.map(|named| (named.name, folder.to_owned(), named.user.unwrap_or_default())));
        let found = file.contexts.unwrap_or_default().into_iter();
        contexts.extend(found.map(|named| (named.name, folder.to_owned(), named.context)));
    }
    let name = context.map(str::to_owned).or(current).ok_or_else(|| {
        Error::invalid("the kubeconfig has no current context")
            .with_help("name one in the store URL: ?context=NAME, or run `kubectl config use-context NAME`")
    })?;
    let context = named(contexts, "context", &name)?.value;
    let cluster = named(clusters, "cluster", &context.cluster)?;
    let user = match context.user.as_str() {
        "" => Entry { value: User::default(), folder: PathBuf::new() },
        user => named(users, "user", user)?,
    };
    let server = checked_url(&cluster.value.server, "the cluster's server in the kubeconfig")?;
    let transport = checked_transport(&cluster.value, transport)?;
    let authorities = cluster.bytes(
        "certificate-authority",
        cluster.value.certificate_authority_data.as_deref(),
        cluster.value.certificate_authority.as_deref(),
    )?;
    let source = source(&user, &server, authorities.as_deref())?;
    Access { server, transport, authorities, identity: identity(&user)?, source }.checked()
}

fn read(path: &Path) -> Result<File, Error> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("the kubeconfig {shown} cannot be read: {error}"))
            .with_help("check KUBECONFIG and the option `kubeconfig` of the store URL")
    })?;
    if text.trim().is_empty() {
        return Ok(File::default());
    }
    serde_saphyr::from_str(&text).map_err(|error| {
        // The parser's message quotes the text, which contains secrets.
        let line = error.location().map_or(String::new(), |at| format!(", line {}", at.line()));
        Error::invalid(format!("the file {shown} is not a kubeconfig{line}"))
            .with_help("check it with `kubectl config view`")
    })
}

fn named<T>(all: Vec<(String, PathBuf, T)>, what: &str, name: &str) -> Result<Entry<T>, Error> {
    let found = all.into_iter().find(|(known, ..)| known == name);
    found
        .map(|(_, folder, value)| Entry { value, folder })
        .ok_or_else(|| invalid(&format!("it has no {what} {name:?}")))
}

fn checked_transport(cluster: &Cluster, transport: Transport) -> Result<Transport, Error> {
    if cluster.insecure_skip_tls_verify == Some(true) {
        return Err(invalid("insecure-skip-tls-verify would send credentials to any server")
            .with_help("name the cluster's authority: certificate-authority"));
    }
    if cluster.tls_server_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Err(invalid("leasehold does not support tls-server-name")
            .with_help("use a server name that the certificate has"));
    }
    match cluster.proxy_url.as_deref().filter(|url| !url.is_empty()) {
        Some(url) if transport.proxy == Proxy::None => {
            // The part before `@` is a login.
            let fine = checked_url(url, "").is_ok();
            if !fine {
                return Err(invalid("its proxy-url is not a URL like http://host:3128")
                    .with_help("set HTTPS_PROXY to the proxy, and write ?proxy=env"));
            }
            Ok(Transport { proxy: Proxy::At(url.to_owned()), ..transport })
        }
        _ => Ok(transport),
    }
}

/// Returns the client certificate and its key in one PEM text.
fn identity(user: &Entry<User>) -> Result<Option<Secret>, Error> {
    let User { client_certificate, client_certificate_data, client_key, client_key_data, .. } = &user.value;
    let certificate =
        user.bytes("client-certificate", client_certificate_data.as_deref(), client_certificate.as_deref())?;
    let key = user.bytes("client-key", client_key_data.as_deref(), client_key.as_deref())?;
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(Secret([certificate, b"\n".to_vec(), key].concat()))),
        _ => Err(invalid("a client-certificate and a client-key belong together")),
    }
}

fn source(user: &Entry<User>, server: &str, authorities: Option<&[u8]>) -> Result<Source, Error> {
    let User { token, token_file, exec, username, auth_provider, impersonated, .. } = &user.value;
    if impersonated.is_some() || username.is_some() || auth_provider.is_some() {
        return Err(invalid("leasehold does not support `as`, `username` and `auth-provider`").with_help(
            "use a token, a client certificate or an `exec` plugin, as Kubernetes does since 1.26",
        ));
    }
    let token = token.clone().filter(|token| !token.is_empty());
    // Uses the same order as kubectl.
    if let Some(file) = token_file.as_ref().filter(|path| !path.as_os_str().is_empty()) {
        return Ok(Source::File(user.folder.join(file)));
    }
    if let Some(token) = token {
        return Ok(Source::Token(Secret(token.into_bytes())));
    }
    let Some(exec) = exec else { return Ok(Source::Connection) };
    let version = exec.api_version.strip_prefix("client.authentication.k8s.io/");
    if !matches!(version, Some("v1" | "v1beta1")) {
        return Err(invalid(&format!("its exec plugin has the apiVersion {:?}", exec.api_version))
            .with_help("leasehold supports client.authentication.k8s.io/v1 and v1beta1"));
    }
    if exec.interactive_mode.as_deref() == Some("Always") {
        return Err(invalid("its exec plugin needs a terminal").with_help(
            "leasehold runs it in the background: use a plugin with interactiveMode IfAvailable or Never",
        ));
    }
    // A command with a slash is relative to the file. Other commands are in PATH.
    let has_folder = exec.command.components().count() > 1;
    let command = if has_folder { user.folder.join(&exec.command) } else { exec.command.clone() };
    let mut spec = serde_json::json!({ "interactive": false });
    if exec.provide_cluster_info
        && let Some(spec) = spec.as_object_mut()
    {
        let engine = base64::engine::general_purpose::STANDARD;
        let data = authorities.map(|pem| engine.encode(pem));
        let cluster = serde_json::json!({ "server": server, "certificate-authority-data": data });
        spec.insert("cluster".to_owned(), cluster);
    }
    let info = serde_json::json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    let env = exec.env.iter().flatten().map(|variable| (variable.name.clone(), variable.value.clone()));
    Ok(Source::Plugin(Plugin {
        command,
        args: exec.args.clone().unwrap_or_default(),
        env: env.collect(),
        info: info.to_string(),
        hint: exec.install_hint.clone(),
    }))
}

fn invalid(flaw: &str) -> Error {
    Error::invalid(format!("the kubeconfig cannot be used: {flaw}"))
        .with_help("check it with `kubectl config view`; select another context with ?context=NAME")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
apiVersion: v1
kind: Config
current-context: one
clusters:
- name: c
  cluster: {server: "https://h:6443/", certificate-authority-data: Y2E=}
- name: plain
  cluster: {server: "http://h"}
- name: insecure
  cluster: {server: "https://h", insecure-skip-tls-verify: true}
users:
- name: token
  user: {token: hunter2}
- name: file
  user: {tokenFile: t, token: hunter2}
- name: certificate
  user: {client-certificate-data: YQ==, client-key: key.pem}
- name: plugin
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./get-token
      args: [--secret, hunter2]
      env: [{name: X, value: hunter2}]
      provideClusterInfo: true
- name: old
  user: {auth-provider: {name: gcp}}
contexts:
- {name: one, context: {cluster: c, user: token}}
- {name: file, context: {cluster: c, user: file, namespace: x}}
- {name: certificate, context: {cluster: c, user: certificate}}
- {name: plugin, context: {cluster: c, user: plugin}}
- {name: old, context: {cluster: c, user: old}}
- {name: plain, context: {cluster: plain, user: token}}
- {name: insecure, context: {cluster: insecure, user: token}}
- {name: nowhere, context: {cluster: none, user: token}}
"#;

    fn in_files(texts: &[&str], context: Option<&str>) -> Result<Access, Error> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key.pem"), "key").unwrap();
        let write = |(n, text): (usize, &&str)| {
            let path = folder.path().join(n.to_string());
            std::fs::write(&path, text).unwrap();
            path
        };
        let files: Vec<_> = texts.iter().enumerate().map(write).collect();
        access(&files, context, Transport::default())
    }

    #[test]
    fn a_context_names_the_server_and_the_login() {
        let access = in_files(&[FILE], None).unwrap();
        assert_eq!(access.server, "https://h:6443");
        assert_eq!(access.authorities.as_deref(), Some(&b"ca"[..]));
        assert_eq!(access.source, Source::Token(Secret(b"hunter2".to_vec())));
        let source = |context| in_files(&[FILE], Some(context)).unwrap().source;
        assert!(matches!(source("file"), Source::File(path) if path.ends_with("t") && path.is_absolute()));
        let Source::Plugin(plugin) = source("plugin") else { panic!("no plugin") };
        assert!(plugin.command.is_absolute() && plugin.command.ends_with("get-token"));
        assert!(plugin.info.contains("\"server\":\"https://h:6443\""), "{}", plugin.info);
        let access = in_files(&[FILE], Some("certificate")).unwrap();
        assert_eq!(access.identity, Some(Secret(b"a\nkey".to_vec())));
        assert_eq!(access.source, Source::Connection);
    }

    #[test]
    fn of_several_files_the_first_entry_of_a_name_counts() {
        let first = "current-context: file\ncontexts: null\nusers: [{name: token, user: {token: mine}}]\n";
        let access = in_files(&[first, "", FILE], Some("one")).unwrap();
        assert_eq!(access.source, Source::Token(Secret(b"mine".to_vec())));
        assert!(matches!(in_files(&[first, FILE], None).unwrap().source, Source::File(_)));
    }

    #[test]
    fn what_cannot_be_used_is_an_error_without_secrets() {
        for (context, named) in [
            ("old", "auth-provider"),
            ("plain", "unencrypted"),
            ("insecure", "insecure-skip-tls-verify"),
            ("nowhere", "\"none\""),
            ("missing", "\"missing\""),
        ] {
            let error = in_files(&[FILE], Some(context)).unwrap_err();
            assert!(error.to_string().contains(named) && !error.help().is_empty(), "{error:?}");
        }
        let plugin = in_files(&[FILE], Some("plugin")).unwrap();
        assert!(!format!("{plugin:?}").contains("hunter2"), "{plugin:?}");
        for text in
            ["a: [", "users: hunter2", "- hunter2\n", "users: [{name: x, user: {token: {a: hunter2}}}]"]
        {
            let error = in_files(&[text], None).unwrap_err();
            assert!(error.to_string().contains("kubeconfig"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
