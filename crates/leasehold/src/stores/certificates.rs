//! The help for connections that fail because of TLS. All stores with TLS share it.

/// The words with which rustls reports a certificate of an authority that is not trusted. It reports `BadSignature` for
/// an unknown authority with the name of a trusted one.
const UNTRUSTED: [&str; 2] = ["UnknownIssuer", "BadSignature"];

/// Returns whether a connection failed because an unknown authority signed the server's certificate.
pub(super) fn is_untrusted(detail: &str) -> bool {
    UNTRUSTED.iter().any(|word| detail.contains(word))
}

/// Returns whether a connection failed because the server's certificate is for other hosts.
pub(super) fn is_for_others(detail: &str) -> bool {
    ["NotValidForName", "not valid for name"].iter().any(|word| detail.contains(word))
}

/// Returns the help for a server whose certificate was refused. `detail` is rustls's message. Returns `None` if the
/// message is about something else.
pub(super) fn help(detail: &str) -> Option<&'static str> {
    let says = |words: &[&str]| words.iter().any(|word| detail.contains(word));
    Some(if is_untrusted(detail) {
        "the server's certificate was signed by an authority that is not trusted: name the file of that authority with \
         ca=FILE in the store URL"
    } else if says(&["CaUsedAsEndEntity"]) {
        "the server uses the certificate of an authority (CA:TRUE) as its own, which TLS clients may not accept: give it \
         a certificate that is none (openssl req -x509 ... -addext basicConstraints=critical,CA:FALSE), or one that the \
         authority signed, and name the file again with ca=FILE"
    } else if is_for_others(detail) {
        "the server's certificate is not for the host in the store URL: use a name in the certificate"
    } else if says(&["certificate expired", "certificate not valid yet", "Expired", "NotValidYet"]) {
        "the server's certificate is not valid at this time: renew it, or set this machine's clock"
    } else {
        return None;
    })
}

/// Returns what [`help`] returns, and the help for a server that requires a client certificate. For stores with the
/// options `cert` and `key`.
pub(super) fn help_for_both(detail: &str) -> Option<&'static str> {
    let is_required = ["CertificateRequired", "HandshakeFailure"].iter().any(|word| detail.contains(word));
    help(detail).or(is_required.then_some(
        "the server requires a client certificate that it trusts: name it with cert=FILE&key=FILE in the store URL",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_a_certificate_says_what_to_do() {
        for (detail, named) in [
            ("invalid peer certificate: UnknownIssuer", "ca=FILE"),
            ("invalid peer certificate: BadSignature", "ca=FILE"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
            ("certificate not valid for name \"a\"; certificate is only valid for b", "a name in"),
            ("invalid peer certificate: certificate expired: verification time 1", "clock"),
        ] {
            assert!(help(detail).unwrap().contains(named), "{detail}");
        }
        assert_eq!(help("connection refused"), None);
        let required = "received fatal alert: CertificateRequired";
        assert!(help(required).is_none() && help_for_both(required).unwrap().contains("cert=FILE"));
    }
}
