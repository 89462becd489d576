//! New system identifier for a copy of a cluster that never ran.
//!
//! Replication clients treat two clusters with the same identifier as one, so a copy of a template
//! needs its own. The identifier is stored twice: in the first field of `pg_control`, which has a
//! checksum, and in the header of each WAL file.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const ID_BYTES: usize = 8;
/// Upper bound of the struct in `pg_control`, which has about 300 bytes.
const MAX_CONTROL_BYTES: usize = 512;
/// Offset in `XLogLongPageHeaderData`, which starts each WAL file.
const ID_IN_WAL: u64 = 24;

/// Replaces the identifier of the cluster in a data folder.
pub(super) fn renew(data: &Path) -> io::Result<()> {
    let control_path = data.join("global/pg_control");
    let mut control = fs::read(&control_path)?;
    let (old, new) =
        renew_control(&mut control).ok_or_else(|| io::Error::other("pg_control has an unknown format"))?;
    for entry in fs::read_dir(data.join("pg_wal"))? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let log = File::options().read(true).write(true).open(entry.path())?;
        let mut id = [0; ID_BYTES];
        log.read_exact_at(&mut id, ID_IN_WAL)?;
        if id != old {
            return Err(io::Error::other("WAL file has an unknown format"));
        }
        log.write_all_at(&new, ID_IN_WAL)?;
    }
    fs::write(control_path, control)
}

/// Returns the old and the new identifier. The upper half, the time of `initdb`, stays; the lower
/// half is random.
fn renew_control(control: &mut [u8]) -> Option<([u8; ID_BYTES], [u8; ID_BYTES])> {
    let end = checksum_offset(control)?;
    let old: [u8; ID_BYTES] = *control.first_chunk()?;
    let random = RandomState::new().hash_one(0) & u64::from(u32::MAX);
    let new = ((u64::from_ne_bytes(old) & !u64::from(u32::MAX)) | random).to_ne_bytes();
    control[..ID_BYTES].copy_from_slice(&new);
    let checksum = crc32c(&control[..end]).to_ne_bytes();
    control[end..end + checksum.len()].copy_from_slice(&checksum);
    Some((old, new))
}

/// Returns the offset of the checksum, which differs between versions: the only one that matches.
fn checksum_offset(control: &[u8]) -> Option<usize> {
    let matches = |end: &usize| {
        let sum = control.get(*end..).and_then(|tail| tail.first_chunk());
        sum.is_some_and(|sum| u32::from_ne_bytes(*sum) == crc32c(&control[..*end]))
    };
    (ID_BYTES..MAX_CONTROL_BYTES).step_by(4).find(matches)
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_renewed_control_file_has_another_identifier_and_a_valid_checksum() {
        let mut control = [7; 64];
        let sum = crc32c(&control[..40]).to_ne_bytes();
        control[40..44].copy_from_slice(&sum);
        let before = control;
        let (old, new) = renew_control(&mut control).expect("the checksum matches");
        assert_eq!((old, &control[..8]), ([7; 8], &new[..]));
        assert_ne!(old, new);
        assert_eq!(before[8..40], control[8..40]);
        assert_eq!(checksum_offset(&control), Some(40));
        control[9] ^= 1;
        assert_eq!(renew_control(&mut control), None, "no checksum matches");
    }
}
