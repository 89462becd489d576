//! Channel binding `tls-server-end-point` (RFC 5929): binds authentication to the TLS session.
//!
//! The binding is a hash of the server's certificate; the hash function is that of the
//! certificate's signature. Only the signature algorithm is parsed here; rustls has verified the
//! rest.

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `[0] EXPLICIT`: the hash function of RSASSA-PSS.
const FIRST: u8 = 0xa0;

/// Returns the binding for this certificate (DER); `None` if no hash is defined, as for Ed25519.
pub(super) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = signature_hash(certificate)?;
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

/// Returns the hash function of the certificate's signature.
///
/// `Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, … }` with
/// `signatureAlgorithm ::= SEQUENCE { OBJECT IDENTIFIER, parameters }`.
fn signature_hash(certificate: &[u8]) -> Option<&'static Algorithm> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (_signed_part, rest) = element(certificate, SEQUENCE)?;
    let (algorithm, _) = element(rest, SEQUENCE)?;
    let (id, parameters) = element(algorithm, OBJECT_IDENTIFIER)?;
    match id {
        // RSASSA-PSS: the hash is a parameter; its default is SHA-1.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10] => match element(parameters, SEQUENCE) {
            Some((fields, _)) if fields.first() == Some(&FIRST) => {
                let (field, _) = element(fields, FIRST)?;
                let (hash, _) = element(field, SEQUENCE)?;
                hash_by_id(element(hash, OBJECT_IDENTIFIER)?.0)
            }
            _ => Some(&SHA256),
        },
        // RSA with MD5, SHA-1 (both are replaced by SHA-256), SHA-256, -384, -512.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4 | 5 | 11] => Some(&SHA256),
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12] => Some(&SHA384),
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13] => Some(&SHA512),
        // ECDSA with SHA-1, SHA-256, -384, -512.
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1] | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2] => Some(&SHA256),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3] => Some(&SHA384),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4] => Some(&SHA512),
        _ => None,
    }
}

fn hash_by_id(id: &[u8]) -> Option<&'static Algorithm> {
    match id {
        [0x2b, 14, 3, 2, 26] => Some(&SHA256),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1] => Some(&SHA256),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 2] => Some(&SHA384),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 3] => Some(&SHA512),
        _ => None,
    }
}

/// Returns the content of the first DER element, which must have this tag, and the rest.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = der.split_first_chunk()?;
    if found != tag {
        return None;
    }
    if length < 0x80 {
        return rest.split_at_checked(length.into());
    }
    let (digits, rest) = rest.split_at_checked((length & 0x7f).into())?;
    if digits.is_empty() || digits.len() > 4 {
        return None;
    }
    let length = digits.iter().fold(0_u64, |length, digit| length << 8 | u64::from(*digit));
    rest.split_at_checked(usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrap(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = content.len();
        let head = match length {
            0..0x80 => vec![tag, length as u8],
            0x80..0x100 => vec![tag, 0x81, length as u8],
            _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
        };
        [head, content].concat()
    }

    fn certificate(id: &[u8], parameters: &[u8], signed_length: usize) -> Vec<u8> {
        let algorithm = wrap(SEQUENCE, &[&wrap(OBJECT_IDENTIFIER, &[id]), parameters]);
        wrap(SEQUENCE, &[&wrap(SEQUENCE, &[&vec![7; signed_length]]), &algorithm, &[3, 2, 0, 1]])
    }

    #[test]
    fn the_hash_function_is_that_of_the_signature() {
        let rsa = |last| vec![0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, last];
        let ecdsa = |last| vec![0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, last];
        let cases = [
            (rsa(4), 32),
            (rsa(5), 32),
            (rsa(11), 32),
            (rsa(12), 48),
            (rsa(13), 64),
            (vec![0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], 32),
            (ecdsa(2), 32),
            (ecdsa(3), 48),
            (ecdsa(4), 64),
        ];
        for (id, length) in cases {
            for signed_length in [3, 200, 700] {
                let binding = server_end_point(&certificate(&id, &[5, 0], signed_length)).unwrap();
                assert_eq!(binding.len(), length, "{id:?}");
            }
        }
        let ed25519 = [0x2b, 0x65, 0x70];
        assert_eq!(server_end_point(&certificate(&ed25519, &[], 200)), None);
    }

    #[test]
    fn rsassa_pss_names_its_hash_in_its_parameters() {
        let pss = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
        for (last, length) in [(1, 32), (2, 48), (3, 64)] {
            let hash = wrap(OBJECT_IDENTIFIER, &[&[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, last]]);
            let parameters = wrap(SEQUENCE, &[&wrap(FIRST, &[&wrap(SEQUENCE, &[&hash, &[5, 0]])])]);
            let binding = server_end_point(&certificate(&pss, &parameters, 200)).unwrap();
            assert_eq!(binding.len(), length);
        }
        assert_eq!(server_end_point(&certificate(&pss, &[SEQUENCE, 0], 200)).unwrap().len(), 32);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0_usize..300) {
            server_end_point(&bytes);
            let whole = certificate(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], &[], 200);
            server_end_point(&whole[..cut.min(whole.len())]);
        }
    }
}
