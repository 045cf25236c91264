//! The certificate of a client, which the TLS handshake has verified.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use leasehold::clock::{Moment, micros};
use rustls::pki_types::CertificateDer;

/// The names in a client's certificate, DNS names and URIs, and how long it is valid. A connection may outlast it.
#[derive(Clone, Debug)]
pub(crate) struct ClientCertificate {
    names: Arc<[String]>,
    /// When it expires, in microseconds since the Unix epoch.
    valid_until_us: u64,
}

impl ClientCertificate {
    /// Returns the certificate at the beginning of `chain`, which was verified at `now`.
    pub(crate) fn of(chain: &[CertificateDer<'_>], now: Moment) -> Self {
        // An authority in the chain may expire before the certificate. A certificate that had expired before was no part
        // of the verified chain.
        let ends = chain.iter().map(|certificate| valid_until_us(certificate).unwrap_or_default());
        let own = chain.first().and_then(|own| valid_until_us(own)).unwrap_or_default();
        let first = ends.filter(|until_us| *until_us > now.wall_us()).min();
        let names = chain.first().map(names).unwrap_or_default();
        Self { names: names.into(), valid_until_us: first.unwrap_or(own).min(own) }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns when it expires, in microseconds since the Unix epoch.
    pub(crate) fn valid_until_us(&self) -> u64 {
        self.valid_until_us
    }

    #[cfg(test)]
    pub(crate) fn with_names(names: &[&str], valid_until_us: u64) -> Self {
        Self { names: names.iter().map(|name| (*name).to_owned()).collect(), valid_until_us }
    }
}

fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    // A certificate authority may be limited to some DNS names but not to URIs, so a name of one kind must not pass for
    // the other.
    let dns = certificate.valid_dns_names().filter(|name| !name.contains(':'));
    let uris = certificate.valid_uri_names().filter(|name| name.contains(':'));
    dns.chain(uris).map(str::to_owned).collect()
}

const SEQUENCE: u8 = 0x30;
/// The tag of the version in a certificate, which may be missing.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the end of a certificate's validity (RFC 5280, section 4.1), in microseconds since the Unix epoch.
fn valid_until_us(certificate: &[u8]) -> Option<u64> {
    let (certificate, _) = content(certificate, SEQUENCE)?;
    let (mut fields, _) = content(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        (_, _, fields) = element(fields)?;
    }
    // The serial number, the algorithm of the signature, and the issuer.
    for _ in 0..3 {
        (_, _, fields) = element(fields)?;
    }
    let (validity, _) = content(fields, SEQUENCE)?;
    let (_, _, not_after) = element(validity)?;
    let (tag, time, _) = element(not_after)?;
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match tag {
        // From 1950 to 2049.
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            (if year < "50" { format!("20{year}") } else { format!("19{year}") }, rest)
        }
        GENERALIZED_TIME => digits.split_at_checked(4).map(|(year, rest)| (year.to_owned(), rest))?,
        _ => return None,
    };
    let two = |at: usize| rest.get(at..at + 2);
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    let last = humantime::parse_rfc3339(&text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    // The certificate is valid throughout its last second.
    Some(micros(last + Duration::from_secs(1)))
}

/// Returns the content of the first element in `der`, if it has this tag, and what follows it.
fn content(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(der).filter(|(found, _, _)| *found == tag).map(|(_, content, rest)| (content, rest))
}

/// Returns the tag and the content of the first element in `der`, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, der) = der.split_first()?;
    let (&first, der) = der.split_first()?;
    let (length, der) = match first {
        ..=0x7f => (usize::from(first), der),
        // The length has this many bytes.
        0x81..=0x84 => {
            let (bytes, der) = der.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), der)
        }
        _ => return None,
    };
    let (content, rest) = der.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;

    fn openssl(folder: &Path, words: &str) -> String {
        let made = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).unwrap()
    }

    /// Returns a certificate that openssl has made, and when it expires according to openssl.
    fn made(folder: &Path, days: u32) -> (CertificateDer<'static>, u64) {
        openssl(
            folder,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -addext subjectAltName=DNS:a.example -days {days} -keyout key -out crt"
            ),
        );
        let shown = openssl(folder, "x509 -in crt -noout -enddate -dateopt iso_8601");
        let text = shown.trim().strip_prefix("notAfter=").unwrap().replace(' ', "T");
        let end = humantime::parse_rfc3339(&text).unwrap().duration_since(UNIX_EPOCH).unwrap();
        let certificate = CertificateDer::from_pem_file(folder.join("crt")).unwrap();
        (certificate, micros(end + Duration::from_secs(1)))
    }

    /// Returns this time on the wall clock.
    fn at(us: u64) -> Moment {
        Moment::from_raw(0, i64::try_from(us * 1_000).unwrap())
    }

    #[test]
    fn the_end_of_validity_is_that_which_openssl_shows() {
        let folder = tempfile::tempdir().unwrap();
        // The second one ends after 2049, so its time has another format.
        for days in [30, 36_500] {
            let (certificate, end_us) = made(folder.path(), days);
            assert_eq!(valid_until_us(&certificate), Some(end_us), "{days}");
            let found = ClientCertificate::of(&[certificate], at(end_us - DAY_US));
            assert_eq!((found.valid_until_us(), found.names().collect()), (end_us, vec!["a.example"]));
        }
    }

    #[test]
    fn an_authority_that_expires_earlier_ends_the_validity() {
        let folder = tempfile::tempdir().unwrap();
        let [(own, own_us), (authority, authority_us)] = [30, 10].map(|days| made(folder.path(), days));
        let chain = [own, authority];
        let until_us = |now_us| ClientCertificate::of(&chain, at(now_us)).valid_until_us();
        assert_eq!(until_us(authority_us - DAY_US), authority_us);
        assert_eq!(until_us(authority_us + DAY_US), own_us, "it was no part of the verified chain");
    }

    #[test]
    fn a_damaged_certificate_is_not_valid() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, _) = made(folder.path(), 30);
        for length in 0..certificate.len() {
            assert_eq!(valid_until_us(&certificate[..length]), None);
        }
    }
}
