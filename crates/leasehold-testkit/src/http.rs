//! A minimal HTTP/1.1 implementation for the proxy and the fakes. It supports only bodies of known length.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

/// The largest accepted body, in bytes. Lock records are smaller.
const MAX_BYTES: usize = 1 << 22;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query, still encoded.
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads the next request of a connection. Returns `None` if the client has closed the connection.
    pub(crate) async fn read(connection: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let mut first = String::new();
        if connection.read_line(&mut first).await? == 0 {
            return Ok(None);
        }
        let mut words = first.split_whitespace().map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(io::Error::other(format!("no request line: {first:?}")));
        };
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self { method, target, headers, body: Vec::new() };
        let length: usize =
            request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if length > MAX_BYTES || request.header("transfer-encoding").is_some() {
            return Err(io::Error::other("a body that is too long or chunked"));
        }
        request.body.resize(length, 0);
        connection.read_exact(&mut request.body).await?;
        Ok(Some(request))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the path without the query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Returns a parameter of the query, still encoded.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then_some(value)
        })
    }

    /// Returns the request to forward, with `connection: close`.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "connection") {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("connection: close\r\n\r\n");
        [head.as_bytes(), &self.body].concat()
    }
}

/// Sends a request to the server at `address`. Each line of `headers` must end with a line break. Returns the status
/// and the body of the response.
#[allow(dead_code, reason = "not every store uses it")]
pub(crate) async fn exchange(
    address: &str,
    method: &str,
    target: &str,
    headers: &str,
    body: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    use tokio::io::AsyncWriteExt;
    let mut connection = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: {address}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(&[head.as_bytes(), body].concat()).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    let no_answer = || io::Error::other("no HTTP response");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(no_answer)?;
    let status = answer.get(9..12).and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    Ok((status.ok_or_else(no_answer)?, answer.split_off(end + 4)))
}

/// Formats seconds since the Unix epoch as an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day) = civil(seconds / 86_400);
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    format!("{weekday}, {day:02} {} {year} {} GMT", MONTHS[month - 1], time_of_day(seconds))
}

/// Formats microseconds since the Unix epoch as in RFC 3339, such as `1994-11-06T08:49:37.000001Z`.
pub(crate) fn rfc3339(us: u64) -> String {
    let (seconds, us) = (us / 1_000_000, us % 1_000_000);
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}T{}.{us:06}Z", time_of_day(seconds))
}

fn time_of_day(seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60)
}

/// Returns the year, the month and the day that begins so many days after the Unix epoch.
fn civil(days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_in_http() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(1_709_164_800), "Thu, 29 Feb 2024 00:00:00 GMT");
        assert_eq!(rfc3339(784_111_777_000_001), "1994-11-06T08:49:37.000001Z");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
