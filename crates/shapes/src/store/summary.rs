//! Summary of a storage directory, without opening it as a store.
//!
//! Invariant: nothing is created, locked or changed.

use std::io;
use std::path::Path;

use super::OpenError;
use super::catalog::StoreCatalog;
use super::disk::RealDisk;
use super::wal::{self, WalPosition};

/// Contents of a storage directory, as of its last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSummary {
    /// Number of shapes.
    pub shapes: usize,
}

impl StoreSummary {
    /// Reads the summary of a directory. Returns `None` if it has no store.
    ///
    /// # Errors
    /// Fails if this version can't read the directory.
    pub fn at(dir: &Path) -> Result<Option<StoreSummary>, OpenError> {
        let disk = match RealDisk::open(dir.to_owned(), true) {
            Ok(disk) => disk,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(catalog) = StoreCatalog::read(&disk)? else { return Ok(None) };
        wal::check_readable(&disk, WalPosition::start(catalog.header.segment))?;
        Ok(Some(StoreSummary { shapes: catalog.shapes.len() }))
    }
}
