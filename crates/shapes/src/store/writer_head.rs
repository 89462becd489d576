//! Head file: the durable position of the WAL, for processes that read while another one writes.
//!
//! Invariant: all records before the position are durable. No record after it is visible to other
//! processes.
//! Enforced by: the writer writes the head after it synced the WAL and before it applies the
//! records. If the disk is full, the head stays old, and other processes see the records later.
//! The head file is not synced. After a power failure it may be old or missing. Until a process
//! writes again, readers then stop at the old position, or read only the catalog.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::wal::WalPosition;

const FILE_NAME: &str = "head";
const FILE_BYTES: usize = 28;

/// Contents of the head file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WriterHead {
    /// End of the durable records.
    pub(crate) durable: WalPosition,
    /// First WAL segment that the catalog doesn't cover.
    pub(crate) catalog: u64,
}

impl WriterHead {
    /// Opens the head file. Creates it if it is missing.
    pub(crate) fn open_or_create(disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        disk.open_or_create(FILE_NAME)
    }

    /// Writes the head, without a sync.
    pub(crate) fn write(&self, file: &dyn DiskFile) -> io::Result<()> {
        let mut bytes = [0; FILE_BYTES];
        let numbers = [self.durable.segment, self.durable.at, self.catalog];
        for (at, number) in numbers.iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes[..FILE_BYTES - 4]);
        bytes[FILE_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&bytes, 0)
    }

    /// Reads the head. Returns `None` if the file is missing, damaged, or being written.
    pub(crate) fn read(disk: &dyn Disk) -> Option<Self> {
        let bytes =
            super::shape_files::read_range(&*disk.open(FILE_NAME).ok()?, 0, FILE_BYTES as u64).ok()?;
        let (numbers, checksum) = bytes.split_at(FILE_BYTES - 4);
        if crc32c::crc32c(numbers).to_le_bytes() != checksum {
            return None;
        }
        let number = |at: usize| numbers[at * 8..at * 8 + 8].try_into().map(u64::from_le_bytes).ok();
        let durable = WalPosition { segment: number(0)?, at: number(1)? };
        Some(WriterHead { durable, catalog: number(2)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::SimulatedDisk;

    #[test]
    fn a_head_file_is_read_back_and_a_damaged_one_is_ignored() {
        let disk = SimulatedDisk::new(1);
        assert_eq!(WriterHead::read(&disk), None);
        let file = WriterHead::open_or_create(&disk).unwrap();
        assert_eq!(WriterHead::read(&disk), None);
        let head = WriterHead { durable: WalPosition { segment: 3, at: 1 << 40 }, catalog: 2 };
        head.write(&*file).unwrap();
        assert_eq!(WriterHead::read(&disk), Some(head));
        for at in 0..FILE_BYTES as u64 {
            let byte = super::super::shape_files::read_range(&*file, at, at + 1).unwrap()[0];
            file.write_all_at(&[byte ^ 4], at).unwrap();
            assert_eq!(WriterHead::read(&disk), None, "byte {at}");
            file.write_all_at(&[byte], at).unwrap();
        }
        // An existing file is overwritten.
        let next = WriterHead { catalog: 3, ..head };
        next.write(&*WriterHead::open_or_create(&disk).unwrap()).unwrap();
        assert_eq!(WriterHead::read(&disk), Some(next));
    }
}
