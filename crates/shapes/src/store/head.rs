//! How far the log is durable, told to those who read beside the writer.
//!
//! Invariant: what it says to be durable is; and nobody can see more of the log than it says. Kept by: it is written after the log was
//! synced, and before that takes effect.
//! It is not synced itself: after a power failure it may be old, or gone, and then nothing is read until somebody writes again.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::wal::Place;

const NAME: &str = "head";
const LEN: usize = 28;

/// What the writer tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Everything before it is durable.
    pub(crate) durable: Place,
    /// The first segment that the catalog doesn't cover.
    pub(crate) catalog: u64,
}

impl Head {
    pub(crate) fn file(disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        match disk.open(NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(NAME),
            done => done,
        }
    }

    pub(crate) fn write(&self, file: &dyn DiskFile) -> io::Result<()> {
        let mut bytes = [0; LEN];
        let numbers = [self.durable.segment, self.durable.at, self.catalog];
        for (at, number) in numbers.iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes[..LEN - 4]);
        bytes[LEN - 4..].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&bytes, 0)
    }

    /// `None`: there is none, or it is being written.
    pub(crate) fn read(disk: &dyn Disk) -> Option<Self> {
        let bytes = super::files::read(&*disk.open(NAME).ok()?, 0, LEN as u64).ok()?;
        let (numbers, checksum) = bytes.split_at(LEN - 4);
        if crc32c::crc32c(numbers).to_le_bytes() != checksum {
            return None;
        }
        let number = |at: usize| numbers[at * 8..at * 8 + 8].try_into().map(u64::from_le_bytes).ok();
        let durable = Place { segment: number(0)?, at: number(1)? };
        Some(Head { durable, catalog: number(2)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::SimulatedDisk;

    #[test]
    fn a_head_is_read_as_it_was_written_or_not_at_all() {
        let disk = SimulatedDisk::new(1);
        assert_eq!(Head::read(&disk), None);
        let file = Head::file(&disk).unwrap();
        assert_eq!(Head::read(&disk), None);
        let head = Head { durable: Place { segment: 3, at: 1 << 40 }, catalog: 2 };
        head.write(&*file).unwrap();
        assert_eq!(Head::read(&disk), Some(head));
        for at in 0..LEN as u64 {
            let byte = super::super::files::read(&*file, at, at + 1).unwrap()[0];
            file.write_all_at(&[byte ^ 4], at).unwrap();
            assert_eq!(Head::read(&disk), None, "byte {at}");
            file.write_all_at(&[byte], at).unwrap();
        }
        // The one that is there is written over.
        let next = Head { catalog: 3, ..head };
        next.write(&*Head::file(&disk).unwrap()).unwrap();
        assert_eq!(Head::read(&disk), Some(next));
    }
}
