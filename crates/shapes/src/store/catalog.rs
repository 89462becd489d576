//! Catalog file: the state of the store without messages, as of the start of a WAL segment.
//!
//! Invariant: there is either no catalog or one whole catalog.
//! Enforced by: it is written to a temporary file, synced, and renamed.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::OpenError;
use super::disk::Disk;
use super::frame::{self, UnknownRecord};
use super::record::{CatalogHeader, CatalogShape, Note, Record};
use super::shape_files;
use crate::definition::TableSchema;

/// Format that this version writes. The docs of [`store`](super) state when it is raised.
pub(crate) const FORMAT: u32 = 2;

/// Oldest format that this version reads. Format 1 has no holds.
const OLDEST_FORMAT: u32 = 1;

pub(crate) const FILE_NAME: &str = "catalog";
const TEMPORARY_NAME: &str = "catalog.new";

/// Contents of the catalog file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoreCatalog {
    pub(crate) header: CatalogHeader,
    pub(crate) tables: Vec<(u64, Arc<TableSchema>)>,
    pub(crate) shapes: Vec<CatalogShape>,
}

impl StoreCatalog {
    /// Replaces the catalog file. The new one is durable when this returns.
    pub(crate) fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut put = |note: Note| drop(frame::write_frame(&Record::Note(note, Bytes::new()), &mut bytes));
        put(Note::Catalog(CatalogHeader { format: FORMAT, ..self.header.clone() }));
        self.tables
            .iter()
            .for_each(|(id, table)| put(Note::Table { id: *id, table: Box::new(TableSchema::clone(table)) }));
        self.shapes.iter().for_each(|shape| put(Note::Shape(Box::new(shape.clone()))));
        put(Note::End { shapes: self.shapes.len() });
        let file = disk.create(TEMPORARY_NAME)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        // After an error here, the old or the new catalog may be on the disk. `Error::other` hides
        // that the disk is full, so that the writer fails and doesn't retry.
        disk.rename(TEMPORARY_NAME, FILE_NAME).and_then(|()| disk.sync_dir("")).map_err(io::Error::other)
    }

    /// Returns the format of the directory, which [`read`](Self::read) accepted; `None`: there is
    /// no catalog.
    pub(crate) fn read_format(disk: &dyn Disk) -> io::Result<Option<u32>> {
        let file = match disk.open(FILE_NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let start = shape_files::read_range(&*file, 0, file.len()?.min(4))?;
        let first = shape_files::read_range(&*file, 0, frame::framed_length(&start) as u64)?;
        Ok(match frame::read_frame(&first.into()) {
            Ok(Some((Record::Note(Note::Catalog(header), _), _))) => Some(header.format),
            Ok(_) | Err(_) => None,
        })
    }

    /// Reads the catalog. Returns `None` if there is none.
    pub(crate) fn read(disk: &dyn Disk) -> Result<Option<Self>, OpenError> {
        let file = match disk.open(FILE_NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Bytes::from(shape_files::read_range(&*file, 0, file.len()?)?);
        let mut catalog = StoreCatalog::default();
        let mut is_first = true;
        let unreadable = |unknown: UnknownRecord| OpenError::Unreadable {
            file: FILE_NAME.to_owned(),
            what: unknown.to_string(),
        };
        while let Some((Record::Note(note, _), length)) = frame::read_frame(&bytes).map_err(unreadable)? {
            let _read = bytes.split_to(length);
            match note {
                Note::Catalog(header) if is_first && !(OLDEST_FORMAT..=FORMAT).contains(&header.format) => {
                    return Err(OpenError::Format { found: header.format, known: FORMAT });
                }
                Note::Catalog(header) if is_first => catalog.header = header,
                Note::Table { id, table } => catalog.tables.push((id, table.into())),
                Note::Shape(shape) => catalog.shapes.push(*shape),
                Note::End { shapes } if shapes == catalog.shapes.len() && !is_first => {
                    return Ok(Some(catalog));
                }
                _ => break,
            }
            is_first = false;
        }
        Err(OpenError::Damaged { file: FILE_NAME })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{CatalogState, LogMode, ReplicaMode, ShapeOptions};
    use crate::simulation::simulated_database::table;
    use crate::store::disk::SimulatedDisk;
    use crate::store::record::{CatalogLog, CompletedSnapshot, SnapshotVisibility};

    fn example_catalog() -> StoreCatalog {
        let table = Arc::new(table(100, "items", vec![0]));
        let options = ShapeOptions {
            clause: Some("qty > 5".into()),
            columns: Some(vec!["id".into()]),
            replica: ReplicaMode::Full,
            log: LogMode::ChangesOnly,
        };
        let seen = SnapshotVisibility { xmin: 1, xmax: 5, xip: vec![3], lsn: 7 };
        let snapshot = Some(CompletedSnapshot { id: 4, seen, len: 900, chunks: vec![500, 900] });
        let log =
            CatalogLog { len: 70, last: (9, 4), chunks: vec![(60, 9, 2)], base: 20, past: vec![(15, 4, 2)] };
        let held_from = Some(12);
        let kept = CatalogShape { id: 4, handle: "1-2".into(), table: 8, options, snapshot, log, held_from };
        let incomplete = CatalogShape { id: 5, snapshot: None, held_from: None, ..kept.clone() };
        let state = CatalogState { columns: vec![(1, 700)], facts: vec![-3], ..CatalogState::default() };
        let head = CatalogHeader {
            format: FORMAT,
            origin: Some("here".into()),
            segment: 3,
            states: vec![(100, state)],
            ..CatalogHeader::default()
        };
        StoreCatalog { header: head, tables: vec![(8, table)], shapes: vec![kept, incomplete] }
    }

    #[test]
    fn a_catalog_is_read_back_as_it_was_written_and_none_if_it_is_missing() {
        let disk = SimulatedDisk::new(1);
        assert_eq!(StoreCatalog::read(&disk).unwrap(), None);
        example_catalog().write(&disk).unwrap();
        assert_eq!(StoreCatalog::read(&disk).unwrap(), Some(example_catalog()));
        assert_eq!(StoreCatalog::read_format(&disk).unwrap(), Some(FORMAT));
    }

    #[test]
    fn a_catalog_of_an_earlier_release_has_no_states() {
        let head = serde_json::to_value(example_catalog().header).unwrap();
        let mut before = head.clone();
        before.as_object_mut().unwrap().remove("states");
        let read: CatalogHeader = serde_json::from_value(before).unwrap();
        assert_eq!(read, CatalogHeader { states: Vec::new(), ..example_catalog().header });
        let mut before = serde_json::to_value(table(100, "items", vec![0])).unwrap();
        before.as_object_mut().unwrap().retain(|field, _| field != "state" && field != "key_is_deferrable");
        assert_eq!(serde_json::from_value::<TableSchema>(before).unwrap(), table(100, "items", vec![0]));
    }

    #[test]
    fn a_catalog_with_any_damaged_byte_is_refused() {
        let disk = SimulatedDisk::new(1);
        example_catalog().write(&disk).unwrap();
        let file = disk.open(FILE_NAME).unwrap();
        let bytes = shape_files::read_range(&*file, 0, file.len().unwrap()).unwrap();
        for at in 0..bytes.len() {
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            assert!(
                matches!(StoreCatalog::read(&disk), Err(OpenError::Damaged { file: FILE_NAME })),
                "byte {at}"
            );
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        for len in 0..bytes.len() {
            file.write_all_at(&bytes, 0).unwrap();
            file.set_len(len as u64).unwrap();
            assert!(
                matches!(StoreCatalog::read(&disk), Err(OpenError::Damaged { file: FILE_NAME })),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn a_catalog_of_another_format_is_refused_with_its_format() {
        for format in [0, FORMAT + 1] {
            let disk = SimulatedDisk::new(1);
            let mut bytes = Vec::new();
            let note = Note::Catalog(CatalogHeader { format, ..CatalogHeader::default() });
            let _nothing = frame::write_frame(&Record::Note(note, Bytes::new()), &mut bytes);
            disk.create(FILE_NAME).unwrap().write_all_at(&bytes, 0).unwrap();
            let refused = StoreCatalog::read(&disk);
            assert!(matches!(refused, Err(OpenError::Format { found, known: FORMAT }) if found == format));
        }
    }
}
