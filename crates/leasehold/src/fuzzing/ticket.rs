//! Properties of tickets.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::assert_readable_error;
use crate::lease::{Token, Ttl};
use crate::ticket::Ticket;

/// The text of a parsed ticket parses to the same ticket. No error and no `Debug` output shows its secret.
///
/// Input without the prefix of a ticket is also encoded as a ticket, because a fuzzer would not find valid base64.
pub fn ticket(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    read(&text);
    if !text.starts_with("lh2_") {
        read(&format!("lh2_{}", URL_SAFE_NO_PAD.encode(data)));
    }
}

fn read(text: &str) {
    let ticket: Ticket = match text.parse() {
        Ok(ticket) => ticket,
        Err(error) => {
            assert_readable_error(&error);
            // The error is one of a few fixed sentences and contains no input.
            assert!(error.to_string().starts_with("this is not a ticket: "), "{error}");
            assert!(error.to_string().len() < 60, "{error}");
            return;
        }
    };
    assert_eq!(ticket.to_string().parse::<Ticket>().unwrap(), ticket);
    assert!(ticket.token().get() < Token::LIMIT);
    assert!(Ttl::new(ticket.ttl()).is_ok());
    let json = serde_json::to_value(&ticket).unwrap();
    let secret = json["secret"].as_str().unwrap();
    let store = json["store"].as_str().unwrap_or("");
    let elsewhere = [ticket.name().as_str(), store].iter().any(|text| text.contains(secret));
    assert!(elsewhere || !format!("{ticket:?}").contains(secret), "{ticket:?}");
    if !store.is_empty() {
        ticket.check_store(store).unwrap();
        let error = ticket.check_store("nowhere:").unwrap_err();
        assert_readable_error(&error);
        assert!(elsewhere || !format!("{error:?}").contains(secret), "{error:?}");
        ticket.without_store().check_store("nowhere:").unwrap();
    }
}
