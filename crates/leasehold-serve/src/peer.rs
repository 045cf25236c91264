//! Whom a connection comes from.

use std::net::{IpAddr, Ipv6Addr};

/// The address of a client, or of the proxy in front of it. An extension of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Returns the network that counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that one client
/// usually has.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        for (one, other, same) in [
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(
                network(one.parse().unwrap()) == network(other.parse().unwrap()),
                same,
                "{one} {other}"
            );
        }
    }
}
