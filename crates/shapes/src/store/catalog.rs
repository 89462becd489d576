//! The catalog: everything but messages, as it was when a segment of the log began.
//!
//! Invariant: there is one catalog or none, whole. Kept by: it is written beside the old one, synced, and takes its name.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::OpenError;
use super::disk::Disk;
use super::files;
use super::record::{self, CatalogHead, Kept, Note, Record};
use crate::definition::Table;

/// Of the files that this program writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

const NAME: &str = "catalog";
const DRAFT: &str = "catalog.new";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Catalog {
    pub(crate) head: CatalogHead,
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) shapes: Vec<Kept>,
}

impl Catalog {
    pub(crate) fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut put = |note: Note| drop(record::frame(&Record::Note(note, Bytes::new()), &mut bytes));
        put(Note::Catalog(CatalogHead { format: FORMAT, ..self.head.clone() }));
        self.tables.iter().for_each(|table| put(Note::Table { table: Table::clone(table) }));
        self.shapes.iter().for_each(|shape| put(Note::Shape(Box::new(shape.clone()))));
        put(Note::End { shapes: self.shapes.len() });
        let file = disk.create(DRAFT)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        disk.rename(DRAFT, NAME)?;
        disk.sync_dir("")
    }

    /// `None`: there is none yet.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Self>, OpenError> {
        let file = match disk.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Bytes::from(files::read(&*file, 0, file.len()?)?);
        let mut catalog = Catalog::default();
        let mut is_first = true;
        while let Some((Record::Note(note, _), length)) = record::next(&bytes) {
            let _read = bytes.split_to(length);
            match note {
                Note::Catalog(head) if is_first && head.format != FORMAT => {
                    return Err(OpenError::Format { found: head.format, known: FORMAT });
                }
                Note::Catalog(head) if is_first => catalog.head = head,
                Note::Table { table } => catalog.tables.push(Arc::new(table)),
                Note::Shape(kept) => catalog.shapes.push(*kept),
                Note::End { shapes } if shapes == catalog.shapes.len() && !is_first => {
                    return Ok(Some(catalog));
                }
                _ => break,
            }
            is_first = false;
        }
        Err(OpenError::Damaged { file: NAME })
    }
}
