//! Networks in CIDR notation, for trusted proxies.
//!
//! Invariant: an IPv4 address and its IPv4-mapped IPv6 form are equal.
//! Enforced by: every address is passed through [`canonical`].

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network such as `10.0.0.0/8` or `2001:db8::/32`. A single address is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns whether the address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, canonical(address)) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                same_prefix(u128::from(u32::from(ours)) << 96, u128::from(u32::from(other)) << 96, self.bits)
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => same_prefix(ours.into(), other.into(), self.bits),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let bad = || NetworkError { text: text.chars().take(64).collect() };
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(bad());
        }
        match canonical(address) {
            // ::ffff:10.0.0.0/104 is 10.0.0.0/8.
            v4 @ IpAddr::V4(_) if most == 128 => {
                let bits = bits.checked_sub(96).ok_or_else(bad)?;
                Ok(Network { address: v4, bits })
            }
            address => Ok(Network { address, bits }),
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        let address = canonical(address);
        Network { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

/// Error for a text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no network; write one as 10.0.0.0/8 or 2001:db8::/32")]
pub struct NetworkError {
    text: String,
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Returns the address that a per-user limit counts: an IPv4 address, or the /64 of an IPv6
/// address, the smallest network that providers assign to a customer.
pub(crate) fn address_group(address: IpAddr) -> IpAddr {
    match canonical(address) {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6) >> 64 << 64)),
    }
}

fn same_prefix(a: u128, b: u128, bits: u8) -> bool {
    bits == 0 || (a ^ b) >> (128 - u32::from(bits)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_contains_exactly_its_prefix() {
        assert!(contains("10.0.0.0/8", "10.255.255.255"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("192.168.1.128/25", "192.168.1.128"));
        assert!(!contains("192.168.1.128/25", "192.168.1.127"));
        assert!(contains("127.0.0.1", "127.0.0.1"));
        assert!(!contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!contains("2001:db8::/32", "2001:db9::"));
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("::/0", "2001:db8::1"));
    }

    #[test]
    fn a_mapped_address_equals_its_ipv4_address() {
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert_eq!("::ffff:10.0.0.0/64".parse::<Network>().ok(), None);
    }

    #[test]
    fn an_invalid_network_is_refused_with_an_example() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/-1", "10.0.0.0/8/8", "example.org"] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains("write one as"), "{text}: {error}");
        }
        assert!("9".repeat(10_000).parse::<Network>().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn an_address_group_is_an_ipv4_address_or_an_ipv6_64_bit_network() {
        let address_group = |text: &str| address_group(text.parse().unwrap()).to_string();
        assert_eq!(address_group("203.0.113.9"), "203.0.113.9");
        assert_eq!(address_group("::ffff:203.0.113.9"), "203.0.113.9");
        assert_eq!(address_group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
