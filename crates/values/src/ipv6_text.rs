//! Texts of IPv6 addresses, as Postgres reads and writes them (inet_cidr_pton_ipv6,
//! pg_inet_net_ntop).

use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// Parses an address. The last groups may be octets in decimal, of which Postgres accepts fewer
/// than four. `has_bits`: a prefix length follows.
pub(crate) fn parse(text: &str, has_bits: bool) -> Option<[u8; 16]> {
    let mut out = Groups { bytes: [0; 16], end: 0, gap: None };
    let mut rest = text.as_bytes();
    if rest.first() == Some(&b':') {
        rest = rest[1..].starts_with(b":").then(|| &rest[1..])?;
    }
    loop {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (group, after) = rest.split_at(digits);
        if digits > 4 {
            return None;
        }
        match (group, after.first()) {
            ([], None) => break,
            ([], Some(b':')) if out.gap.is_none() => out.gap = Some(out.end),
            ([], Some(b':')) => return None,
            (_, Some(b'.')) => {
                out.octets(rest, has_bits)?;
                break;
            }
            (_, None) => {
                out.group(group)?;
                break;
            }
            (_, Some(b':')) if after.len() == 1 && !has_bits => return None,
            (_, Some(b':')) => out.group(group)?,
            _ => return None,
        }
        rest = &after[1..];
    }
    out.address()
}

struct Groups {
    bytes: [u8; 16],
    /// Number of bytes that are written.
    end: usize,
    /// Where `::` is.
    gap: Option<usize>,
}

impl Groups {
    /// Adds a group of one to four hexadecimal digits.
    fn group(&mut self, digits: &[u8]) -> Option<()> {
        let value = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        self.bytes.get_mut(self.end..self.end + 2)?.copy_from_slice(&value.to_be_bytes());
        self.end += 2;
        Some(())
    }

    /// Adds up to four octets (getv4). An octet without digits is 0, but not the last one.
    fn octets(&mut self, text: &[u8], has_bits: bool) -> Option<()> {
        let place = self.bytes.get_mut(self.end..self.end + 4)?;
        let octets: Vec<_> = text.split(|byte| *byte == b'.').collect();
        if octets.len() > 4 || octets.last()?.is_empty() && !has_bits {
            return None;
        }
        for (octet, place) in octets.into_iter().zip(place) {
            let is_number = octet.iter().all(u8::is_ascii_digit) && (octet.len() < 2 || octet[0] != b'0');
            *place = match octet {
                _ if !is_number => return None,
                [] => 0,
                octet => std::str::from_utf8(octet).ok()?.parse().ok()?,
            };
        }
        self.end += 4;
        Some(())
    }

    /// Returns the address, with zeros for `::`.
    fn address(mut self) -> Option<[u8; 16]> {
        match self.gap {
            None => (self.end == 16).then_some(self.bytes),
            Some(gap) if self.end < 16 => {
                self.bytes[gap..].rotate_right(16 - self.end);
                Some(self.bytes)
            }
            Some(_) => None,
        }
    }
}

pub(crate) fn write_v4(out: &mut String, bytes: &[u8]) {
    write!(out, "{}.{}.{}.{}", bytes[0], bytes[1], bytes[2], bytes[3])
        .expect("writing to a String never fails");
}

/// Writes `::` for the longest run of zeros, and embedded v4 addresses with dots
/// (pg_inet_net_ntop).
pub(crate) fn write_v6(out: &mut String, bytes: &[u8; 16]) {
    let words = Ipv6Addr::from(*bytes).segments();
    let mut zeros = 0..0;
    let mut at = 0;
    while at < 8 {
        let end = at + words[at..].iter().take_while(|word| **word == 0).count();
        if end - at > zeros.len() {
            zeros = at..end;
        }
        at = end + 1;
    }
    if zeros.len() < 2 {
        zeros = 8..8;
    }
    for (index, word) in words.iter().enumerate() {
        if zeros.contains(&index) {
            if index == zeros.start {
                out.push(':');
            }
            continue;
        }
        if index > 0 {
            out.push(':');
        }
        let is_embedded = zeros.start == 0 && (zeros.len() == 6 || (zeros.len() == 5 && words[5] == 0xffff));
        if index == 6 && is_embedded {
            write_v4(out, &bytes[12..]);
            return;
        }
        write!(out, "{word:x}").expect("writing to a String never fails");
    }
    if zeros.end == 8 && !zeros.is_empty() {
        out.push(':');
    }
}
