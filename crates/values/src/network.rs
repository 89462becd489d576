//! Network addresses: inet, cidr and macaddr (network.c, inet_net_pton.c, mac.c).

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::input_error::InputError;
use super::ipv6_text;

/// An inet or cidr: an address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inet {
    is_v6: bool,
    /// Length of the prefix, in bits.
    bits: u8,
    /// The address. A v4 address is in the first four bytes.
    bytes: [u8; 16],
}

/// Operator on two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InetOperator {
    /// `<<`
    Within,
    /// `<<=`
    WithinOrEqual,
    /// `>>`
    Contains,
    /// `>>=`
    ContainsOrEqual,
    /// `&&`
    Overlaps,
}

impl InetOperator {
    /// Returns the operator with this name.
    pub fn of(operator: &str) -> Option<Self> {
        Some(match operator {
            "<<" => InetOperator::Within,
            "<<=" => InetOperator::WithinOrEqual,
            ">>" => InetOperator::Contains,
            ">>=" => InetOperator::ContainsOrEqual,
            "&&" => InetOperator::Overlaps,
            _ => return None,
        })
    }
}

impl Inet {
    /// Parses an inet. A v4 address needs all four octets, or a prefix length that covers no more
    /// than those written.
    pub(crate) fn parse_inet(text: &str) -> Result<Self, InputError> {
        let (address, bits) = split(text)?;
        if address.contains(':') {
            return Inet::v6(address, bits);
        }
        let (bytes, octets) = v4_octets(address)?;
        let bits = match bits {
            None if octets == 4 => 32,
            None => return Err(InputError::Syntax),
            Some(text) => number(text, 32)?,
        };
        match usize::from(bits / 8) > octets {
            true => Err(InputError::Syntax),
            false => Ok(Inet { is_v6: false, bits, bytes }),
        }
    }

    /// Parses a cidr. A v4 network without a prefix length has that of its class.
    pub(crate) fn parse_cidr(text: &str) -> Result<Self, InputError> {
        let (address, bits) = split(text)?;
        let network = if address.contains(':') {
            Inet::v6(address, bits)?
        } else {
            if address.starts_with(['0']) && address[1..].starts_with(['x', 'X']) {
                return Err(InputError::Unsupported("networks in hexadecimal"));
            }
            let (bytes, octets) = v4_octets(address)?;
            let bits = match bits {
                Some(text) => number(text, 32)?,
                None => class_bits(bytes[0], octets),
            };
            Inet { is_v6: false, bits, bytes }
        };
        match network.masked() == network {
            true => Ok(network),
            false => Err(InputError::HostBits),
        }
    }

    fn v6(address: &str, bits: Option<&str>) -> Result<Self, InputError> {
        let bytes = ipv6_text::parse(address, bits.is_some()).ok_or(InputError::Syntax)?;
        let bits = match bits {
            // Only here, a leading zero is an error.
            Some(text) if text.len() > 1 && text.starts_with('0') => return Err(InputError::Syntax),
            Some(text) => number(text, 128)?,
            None => 128,
        };
        Ok(Inet { is_v6: true, bits, bytes })
    }

    fn most_bits(self) -> u8 {
        if self.is_v6 { 128 } else { 32 }
    }

    /// Returns the network: the address without its host bits, as a cast to cidr does.
    pub(crate) fn masked(mut self) -> Self {
        for (index, byte) in self.bytes.iter_mut().enumerate() {
            let kept = usize::from(self.bits).saturating_sub(index * 8).min(8);
            *byte &= !(0xff_u16 >> kept) as u8;
        }
        self
    }

    /// Compares the first bits of two addresses (bitncmp).
    fn compare_bits(&self, other: &Inet, bits: u8) -> Ordering {
        let first = |inet: &Inet| Inet { bits, ..*inet }.masked().bytes;
        first(self).cmp(&first(other))
    }

    /// Applies an operator to two addresses.
    pub fn relates(&self, operator: InetOperator, other: &Inet) -> bool {
        let shared = self.bits.min(other.bits);
        let is_wide_enough = match operator {
            InetOperator::Within => self.bits > other.bits,
            InetOperator::WithinOrEqual => self.bits >= other.bits,
            InetOperator::Contains => self.bits < other.bits,
            InetOperator::ContainsOrEqual => self.bits <= other.bits,
            InetOperator::Overlaps => true,
        };
        self.is_v6 == other.is_v6 && is_wide_enough && self.compare_bits(other, shared) == Ordering::Equal
    }

    /// Formats the address. The prefix length is left out if it is the longest, unless `whole`.
    pub(crate) fn write(&self, whole: bool) -> String {
        let mut out = String::new();
        if self.is_v6 {
            ipv6_text::write_v6(&mut out, &self.bytes);
        } else {
            ipv6_text::write_v4(&mut out, &self.bytes[..4]);
        }
        if whole || self.bits != self.most_bits() {
            write!(out, "/{}", self.bits).expect("writing to a String never fails");
        }
        out
    }
}

impl Ord for Inet {
    /// Orders v4 before v6, then by network, by prefix length, and by host bits (network_cmp).
    fn cmp(&self, other: &Self) -> Ordering {
        self.is_v6
            .cmp(&other.is_v6)
            .then_with(|| self.compare_bits(other, self.bits.min(other.bits)))
            .then_with(|| self.bits.cmp(&other.bits))
            .then_with(|| self.bytes.cmp(&other.bytes))
    }
}

impl PartialOrd for Inet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn split(text: &str) -> Result<(&str, Option<&str>), InputError> {
    Ok(match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    })
}

fn number(text: &str, most: u8) -> Result<u8, InputError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value: u8 = text.parse().map_err(|_| InputError::Syntax)?;
    if is_number && value <= most { Ok(value) } else { Err(InputError::Syntax) }
}

/// Parses one to four octets. Returns their number, too.
fn v4_octets(text: &str) -> Result<([u8; 16], usize), InputError> {
    let (mut bytes, mut count) = ([0; 16], 0);
    for octet in text.split('.') {
        if count == 4 {
            return Err(InputError::Syntax);
        }
        bytes[count] = number(octet, 255)?;
        count += 1;
    }
    Ok((bytes, count))
}

/// Returns the prefix length of a v4 network by its class, but at least that of its octets.
fn class_bits(first: u8, octets: usize) -> u8 {
    let of_class = match first {
        240.. => 32,
        224.. => 8,
        192.. => 24,
        128.. => 16,
        _ => 8,
    };
    let bits = of_class.max(octets as u8 * 8);
    if bits == 8 && first == 224 { 4 } else { bits }
}

/// Parses a MAC address in one of its seven forms.
pub(crate) fn mac(text: &str) -> Result<[u8; 6], InputError> {
    let text = super::input::trim(text);
    let pairs = |mark: char| text.split(mark).map(str::to_owned).collect::<Vec<_>>();
    let groups = |size: usize, mark: Option<char>| -> Option<Vec<String>> {
        let groups = match mark {
            Some(mark) => pairs(mark),
            None => vec![text.to_owned()],
        };
        let is_whole = groups.iter().all(|group| group.len() == size) && groups.len() * size == 12;
        is_whole.then(|| {
            let digits = groups.concat().into_bytes();
            digits.chunks(2).map(|pair| String::from_utf8_lossy(pair).into_owned()).collect()
        })
    };
    if !text.is_ascii() {
        return Err(InputError::Syntax);
    }
    // With `:` and `-` between the bytes, one digit is enough.
    let bytes = [':', '-'].into_iter().map(pairs).find(|bytes| bytes.len() == 6);
    let bytes = bytes.or_else(|| {
        [(6, Some(':')), (6, Some('-')), (4, Some('.')), (4, Some('-')), (12, None)]
            .into_iter()
            .find_map(|(size, mark)| groups(size, mark))
    });
    let mut mac = [0; 6];
    for (byte, digits) in mac.iter_mut().zip(bytes.ok_or(InputError::Syntax)?) {
        let is_byte =
            (1..=2).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let parsed = is_byte.then(|| u8::from_str_radix(&digits, 16).ok()).flatten();
        *byte = parsed.ok_or(InputError::Syntax)?;
    }
    Ok(mac)
}

pub(crate) fn write_mac(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_postgres_does() {
        for (text, written) in [
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10/8", "10.0.0.0/8"),
            ("010.1.2.3/08", "10.1.2.3/8"),
            ("::1", "::1"),
            ("::", "::"),
            ("2001:DB8:0:0:1:0:0:1/64", "2001:db8::1:0:0:1/64"),
            ("::ffff:1.2.3.4", "::ffff:1.2.3.4"),
            ("::102:304", "::1.2.3.4"),
            ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7:0"),
            ("1::", "1::"),
            // Fewer than four octets are the first ones.
            ("::1.2", "::1.2.0.0"),
            ("::ffff:10.0.0/96", "::ffff:10.0.0.0/96"),
            ("1:2:3:4:5:6:7.8", "1:2:3:4:5:6:708:0"),
            ("::1..2", "::1.0.2.0"),
            ("::1./64", "::1.0.0.0/64"),
            ("1:2:3:4:5:6:7:8:/64", "1:2:3:4:5:6:7:8/64"),
        ] {
            assert_eq!(Inet::parse_inet(text).unwrap().write(false), written, "{text}");
        }
        for text in [
            "",
            "10",
            "10.1/24",
            "256.1.1.1",
            "1.2.3.4.5",
            "1.2.3.4/33",
            "::1/129",
            ":::",
            "::1/01",
            "1.2.3.4/",
            "::1.",
            "::01.2",
            "::a.1",
            "::256.1",
            "::1.2.3.4.5",
            "1:2:3:4:5:6:7:1.2",
            "1:2:3:4:5:6:7:8:",
            "1:2:3:4:5:6:7::8",
            "::12345",
            "1:2",
            ":1",
            "1::2::3",
        ] {
            assert!(Inet::parse_inet(text).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_without_a_prefix_length_have_that_of_their_class() {
        for (text, written) in [
            ("10", "10.0.0.0/8"),
            ("172.16", "172.16.0.0/16"),
            ("192.168.1", "192.168.1.0/24"),
            ("224", "224.0.0.0/4"),
        ] {
            assert_eq!(Inet::parse_cidr(text).unwrap().write(true), written, "{text}");
        }
        assert_eq!(Inet::parse_cidr("10.1.2.3/8"), Err(InputError::HostBits));
    }

    #[test]
    fn networks_contain_addresses_of_their_family() {
        let inet = |text: &str| Inet::parse_inet(text).unwrap();
        for (left, operator, right, holds) in [
            ("10.1.2.3", InetOperator::Within, "10.0.0.0/8", true),
            ("10.0.0.0/8", InetOperator::Within, "10.0.0.0/8", false),
            ("10.0.0.0/8", InetOperator::WithinOrEqual, "10.9.0.0/8", true),
            ("11.0.0.1", InetOperator::Within, "10.0.0.0/7", true),
            ("::a01:203", InetOperator::Within, "10.0.0.0/8", false),
            ("10.0.0.0/8", InetOperator::Overlaps, "10.1.0.0/16", true),
        ] {
            assert_eq!(inet(left).relates(operator, &inet(right)), holds, "{left} {operator:?} {right}");
        }
        assert!(inet("10.0.0.0/8") < inet("10.0.0.0/9") && inet("255.0.0.0") < inet("::"));
    }

    #[test]
    fn mac_addresses_have_seven_forms() {
        for text in [
            "08:00:2b:01:02:03",
            "08-00-2b-01-02-03",
            "08002b:010203",
            "08002b-010203",
            "0800.2b01.0203",
            "0800-2b01-0203",
            "08002B010203",
            "8:0:2b:1:2:3",
        ] {
            assert_eq!(mac(text).map(|mac| write_mac(&mac)), Ok("08:00:2b:01:02:03".to_owned()), "{text}");
        }
        for text in ["", "08:00:2b:01:02", "08:00:2b:01:02:0g", "08002b01020", "é"] {
            assert_eq!(mac(text), Err(InputError::Syntax), "{text}");
        }
    }
}
