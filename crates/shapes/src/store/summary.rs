//! What a directory holds, for those who only want to know.
//!
//! Invariant: nothing is made, locked or changed by looking.

use std::io;
use std::path::Path;

use super::OpenError;
use super::catalog::StoreCatalog;
use super::disk::RealDisk;
use super::wal::{self, WalPosition};

/// What a store's directory holds, as of its last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreSummary {
    /// How many shapes.
    pub shapes: usize,
}

impl StoreSummary {
    /// Looks at a directory; `None` if there is no store in it.
    ///
    /// # Errors
    /// When this version can't read what is there.
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
