//! Discovers the members of a cluster by its SRV records in DNS, as etcd's own clients do.
//!
//! Written by hand, because a resolver crate has 17 dependencies. Queries the servers of `/etc/resolv.conf` over UDP,
//! and over TCP if the response does not fit. Blocks.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::clock::{Clock as _, Deadline, SystemClock};
use crate::error::{Error, ErrorKind};
use crate::random::Random;

/// The time limit of one query to one server, and the number of queries to each server.
const LIMIT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;

const SRV: u16 = 33;
const INTERNET: u16 = 1;
const LONGEST_NAME: usize = 253;

/// An SRV record. Lower priorities come first. Among equal priorities, higher weights come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    priority: u16,
    weight: std::cmp::Reverse<u16>,
    target: String,
    port: u16,
}

/// Returns `host:port` of each member of the cluster of `domain`, in the order of its records.
///
/// # Errors
/// Invalid if the domain has no such records, unavailable if no server responds.
pub(super) fn members(domain: &str, tls: bool) -> Result<Vec<String>, Error> {
    let servers = servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    members_by(&servers, domain, tls)
}

fn members_by(servers: &[SocketAddr], domain: &str, tls: bool) -> Result<Vec<String>, Error> {
    let service = if tls { "_etcd-client-ssl" } else { "_etcd-client" };
    let name = format!("{service}._tcp.{}", domain.trim_end_matches('.'));
    let id = Random::from_os().bits().to_le_bytes();
    let id = u16::from_le_bytes([id[0], id[1]]);
    let question = question(id, &name).ok_or_else(|| {
        Error::invalid(format!("{domain:?} is not a domain whose SRV records could be queried"))
    })?;
    let mut trouble = String::from("no name server is configured");
    for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
        match ask(server, &question, id) {
            Ok(mut records) => {
                records.sort();
                let members: Vec<_> =
                    records.iter().map(|record| format!("{}:{}", record.target, record.port)).collect();
                if members.is_empty() {
                    return Err(Error::invalid(format!("DNS has no SRV records of {name}")).with_help(
                        "add them, or name the members: etcd://host:2379,host2:2379/prefix/; with tls=on leasehold \
                         queries _etcd-client-ssl._tcp, without it _etcd-client._tcp",
                    ));
                }
                return Ok(members);
            }
            Err(error) => trouble = format!("{server}: {error}"),
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("the SRV records of {name} could not be queried: {trouble}"),
    )
    .with_help("is a name server in /etc/resolv.conf reachable?"))
}

/// Parses the servers in a `resolv.conf`. If there are none, returns the server on this machine.
fn servers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let mut servers: Vec<_> =
        text.lines().filter_map(address).map(|server| SocketAddr::new(server, 53)).collect();
    if servers.is_empty() {
        servers.push((Ipv4Addr::LOCALHOST, 53).into());
    }
    servers
}

fn ask(server: &SocketAddr, question: &[u8], id: u16) -> io::Result<Vec<Record>> {
    let deadline = Deadline::new(SystemClock.now(), LIMIT);
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // After this, the socket does not receive packets from other addresses.
    socket.connect(server)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.send(question)?;
    let mut answer = vec![0; 4_096];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    if !is_truncated(&answer) {
        return records(&answer, id, question);
    }
    let mut stream = TcpStream::connect_timeout(server, left(deadline)?)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    let length = u16::try_from(question.len()).map_err(|_| bad("the query is too long"))?;
    stream.write_all(&[&length.to_be_bytes(), question].concat())?;
    let mut length = [0; 2];
    read_until(&mut stream, &mut length, deadline)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    read_until(&mut stream, &mut answer, deadline)?;
    records(&answer, id, question)
}

/// Fills `buffer` until `deadline`. The timeout of a stream applies to one read, and a server may send one byte at a
/// time.
fn read_until(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(buffer) {
            Ok(0) => return Err(bad("the response ends too early")),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(deadline: Deadline) -> io::Result<Duration> {
    let left = deadline.remaining(SystemClock.now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Builds a question for the SRV records of `name`, with recursion. Returns `None` if `name` is not valid.
fn question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        message.push(length);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(SRV.to_be_bytes());
    message.extend(INTERNET.to_be_bytes());
    (name.len() <= LONGEST_NAME).then_some(message)
}

fn is_truncated(message: &[u8]) -> bool {
    message.get(2).is_some_and(|flags| flags & 2 != 0)
}

/// Parses the records in the response to `question`. Returns none if the name does not exist.
fn records(message: &[u8], id: u16, question: &[u8]) -> io::Result<Vec<Record>> {
    let is_answer = message.get(2).is_some_and(|flags| flags & 0x80 != 0);
    // The response repeats the question after a header of the same length.
    let asked =
        message.get(12..question.len()).is_some_and(|asked| asked.eq_ignore_ascii_case(&question[12..]));
    match message.get(3).map(|flags| flags & 0xf) {
        _ if number(message, 0) != Some(id) || !is_answer => Err(bad("a response to another query")),
        Some(0) if asked => {
            read(message, question.len()).ok_or_else(|| bad("a response that cannot be read"))
        }
        Some(3) => Ok(Vec::new()),
        Some(code) => Err(bad(&format!("refused with code {code}"))),
        None => Err(bad("a response that cannot be read")),
    }
}

fn read(message: &[u8], mut at: usize) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    for _ in 0..number(message, 6)? {
        at = name(message, at)?.1;
        let (kind, class) = (number(message, at)?, number(message, at + 2)?);
        let data = at + 10;
        at = data + usize::from(number(message, at + 8)?);
        if kind == SRV && class == INTERNET {
            let (target, end) = name(message, data + 6)?;
            // A target of `.` means that there is no such service.
            if end == at && !target.is_empty() {
                let (priority, weight) =
                    (number(message, data)?, std::cmp::Reverse(number(message, data + 2)?));
                records.push(Record { priority, weight, target, port: number(message, data + 4)? });
            }
        }
    }
    Some(records)
}

fn number(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]))
}

/// Parses the name at `at`, which may continue elsewhere in the message. Also returns where it ends.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut labels, mut end) = (Vec::new(), None);
    // No valid name has more labels and pointers.
    for _ in 0..256 {
        let length = usize::from(*message.get(at)?);
        match length {
            0 => {
                let name = labels.join(".");
                return (name.len() <= LONGEST_NAME).then_some((name, end.unwrap_or(at + 1)));
            }
            1..64 => {
                let label = message.get(at + 1..at + 1 + length)?;
                let fine = label.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b));
                labels.push(std::str::from_utf8(label).ok().filter(|_| fine)?);
                at += 1 + length;
            }
            192.. => {
                end.get_or_insert(at + 2);
                at = usize::from(number(message, at)? & 0x3fff);
            }
            _ => return None,
        }
    }
    None
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn record(priority: u16, weight: u16, port: u16, target: &[u8]) -> Vec<u8> {
        // The name as a pointer to the question, type and class, time to live, length, data.
        let mut record = vec![0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0];
        record.push(u8::try_from(6 + target.len()).unwrap());
        record.extend([priority.to_be_bytes(), weight.to_be_bytes(), port.to_be_bytes()].concat());
        record.extend(target);
        record
    }

    /// Builds a response to `question` with these records.
    fn answer(question: &[u8], flags: [u8; 2], records: &[Vec<u8>]) -> Vec<u8> {
        let mut message = question.to_vec();
        message[2..4].copy_from_slice(&flags);
        message[7] = u8::try_from(records.len()).unwrap();
        message.extend(records.concat());
        message
    }

    const FINE: [u8; 2] = [0x81, 0x80];
    const TRUNCATED: [u8; 2] = [0x83, 0x80];

    /// Starts a name server that answers one question over UDP and, if that response was truncated, one over TCP.
    fn server(respond: impl Fn(&[u8], bool) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).unwrap();
        thread::spawn(move || {
            let mut question = vec![0; 512];
            let (length, client) = socket.recv_from(&mut question).unwrap();
            let response = respond(&question[..length], false);
            socket.send_to(&response, client).unwrap();
            if is_truncated(&response) {
                let (mut stream, _) = listener.accept().unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut question).unwrap();
                let response = respond(&question, true);
                stream.write_all(&u16::try_from(response.len()).unwrap().to_be_bytes()).unwrap();
                stream.write_all(&response).unwrap();
            }
        });
        address
    }

    #[test]
    fn srv_records_are_requested_and_sorted() {
        // The second target ends in a pointer to the domain in the question, after `_etcd-client-ssl` and `_tcp`.
        let domain = 12 + 17 + 5;
        let three = [
            record(10, 1, 2379, b"\x01c\x00"),
            record(0, 1, 2380, &[1, b'b', 0xc0, domain]),
            record(0, 9, 2379, b"\x01a\x03org\x00"),
        ];
        let truncated = server(move |question, tcp| {
            assert!(question[12..].starts_with(b"\x10_etcd-client-ssl\x04_tcp\x07example\x03com\x00"));
            answer(question, if tcp { FINE } else { TRUNCATED }, if tcp { &three } else { &[] })
        });
        let members = members_by(&[truncated], "example.com.", true).unwrap();
        assert_eq!(members, ["a.org:2379", "b.example.com:2380", "c:2379"]);
        let plain = server(|question, _| {
            assert!(question[12..].starts_with(b"\x0c_etcd-client\x04_tcp\x07"));
            answer(question, FINE, &[record(0, 0, 1, b"\x01a\x00")])
        });
        // If one server refuses, the next one is asked.
        let refusing = server(|question, _| answer(question, [0x81, 0x85], &[]));
        assert_eq!(members_by(&[refusing, plain], "example.com", false).unwrap(), ["a:1"]);
    }

    #[test]
    fn a_domain_without_records_is_an_error_that_names_them() {
        for (flags, records) in
            [(FINE, vec![]), ([0x81, 0x83], vec![]), (FINE, vec![record(0, 0, 0, b"\x00")])]
        {
            let server = server(move |question, _| answer(question, flags, &records));
            let error = members_by(&[server], "example.com", false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("_etcd-client._tcp.example.com"), "{error:?}");
        }
        for domain in ["", "a..b", &"x".repeat(64)] {
            assert_eq!(members_by(&[], domain, false).unwrap_err().kind(), ErrorKind::Invalid, "{domain}");
        }
        assert_eq!(members_by(&[], "example.com", false).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_response_to_another_question_is_rejected() {
        let asked = question(7, "_etcd-client._tcp.a.b").unwrap();
        let records_of = |message: &[u8]| records(message, 7, &asked);
        let good = answer(&asked, FINE, &[record(0, 0, 1, b"\x01a\x00")]);
        assert_eq!(records_of(&good).unwrap().len(), 1);
        for (at, byte) in [(0, 1), (2, 1), (20, b'x')] {
            let mut other = good.clone();
            other[at] = byte;
            assert!(records_of(&other).is_err(), "{at}");
        }
        for length in 0..good.len() {
            assert!(records_of(&good[..length]).is_err(), "{length}");
        }
        // A name with a pointer to itself.
        let turning =
            answer(&asked, FINE, &[record(0, 0, 1, &[0xc0, u8::try_from(asked.len()).unwrap() + 18])]);
        assert!(records_of(&turning).is_err());
    }

    #[test]
    fn a_response_sent_byte_by_byte_has_one_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"abc").unwrap();
        let mut buffer = [0; 2];
        let in_time = Deadline::new(SystemClock.now(), Duration::from_secs(60));
        read_until(&mut stream, &mut buffer, in_time).unwrap();
        assert_eq!(&buffer, b"ab");
        // A byte can be read, but the deadline has passed.
        let passed = Deadline::new(SystemClock.now(), Duration::ZERO);
        let error = read_until(&mut stream, &mut buffer[..1], passed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(server);
        assert_eq!(
            read_until(&mut stream, &mut buffer, in_time).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_name_that_is_too_long_is_not_read() {
        let name_of = |labels: usize| {
            name(&[[b"\x3f".as_slice(), &[b'a'; 63]].concat().repeat(labels), vec![0]].concat(), 0)
        };
        assert_eq!(name_of(3).unwrap().0.len(), 191);
        assert_eq!(name_of(4), None);
    }

    #[test]
    fn name_servers_are_read_from_resolv_conf() {
        let text = "# x\nnameserver 10.0.0.1\n nameserver\t::1 \nsearch a\nnameserver x\n";
        assert_eq!(servers(text), ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
    }

    proptest! {
        #[test]
        fn an_arbitrary_response_causes_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let asked = question(7, "_etcd-client._tcp.a.b").unwrap();
            let _ = records(&bytes, 7, &asked);
            let mut odd = answer(&asked, FINE, &[bytes]);
            let _ = records(&odd, 7, &asked);
            odd[6] = 0xff;
            for record in records(&odd, 7, &asked).unwrap_or_default() {
                prop_assert!(record.target.bytes().all(|b| b.is_ascii_graphic()));
            }
        }
    }
}
