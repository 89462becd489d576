//! Networks in CIDR notation: which peers are our own proxies.
//!
//! Invariant: an IPv4 address and its IPv6-mapped form are the same address everywhere.
//! Kept by: [`plain`], through which every address goes first.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network such as `10.0.0.0/8` or `2001:db8::/32`; an address alone is a network of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether the address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, plain(address)) {
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
        match plain(address) {
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
        let address = plain(address);
        Network { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

/// What was written is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no network; write one as 10.0.0.0/8 or 2001:db8::/32")]
pub struct NetworkError {
    text: String,
}

/// The same address without the IPv6 mapping.
pub(crate) fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Whom an address stands for: an IPv4 address is one customer, of IPv6 a customer has at least a /64.
pub(crate) fn customer(address: IpAddr) -> IpAddr {
    match plain(address) {
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

    fn holds(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn an_address_is_in_its_network_up_to_the_last_bit() {
        assert!(holds("10.0.0.0/8", "10.255.255.255"));
        assert!(!holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("192.168.1.128/25", "192.168.1.128"));
        assert!(!holds("192.168.1.128/25", "192.168.1.127"));
        assert!(holds("127.0.0.1", "127.0.0.1"));
        assert!(!holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::"));
        assert!(holds("0.0.0.0/0", "203.0.113.9"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("::/0", "2001:db8::1"));
    }

    #[test]
    fn a_mapped_address_is_the_address_that_it_maps() {
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(holds("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert_eq!("::ffff:10.0.0.0/64".parse::<Network>().ok(), None);
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_to_write() {
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/-1", "10.0.0.0/8/8", "example.org"] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains("write one as"), "{text}: {error}");
        }
        assert!("9".repeat(10_000).parse::<Network>().unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn a_customer_is_an_ipv4_address_or_an_ipv6_network_of_64_bits() {
        let customer = |text: &str| customer(text.parse().unwrap()).to_string();
        assert_eq!(customer("203.0.113.9"), "203.0.113.9");
        assert_eq!(customer("::ffff:203.0.113.9"), "203.0.113.9");
        assert_eq!(customer("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
