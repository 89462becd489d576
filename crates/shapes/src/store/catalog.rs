//! The catalog: everything but messages, as it was when a segment of the log began.
//!
//! Invariant: there is one catalog or none, whole. Kept by: it is written beside the old one, synced, and takes its name.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::OpenError;
use super::disk::Disk;
use super::files;
use super::record::{self, CatalogHead, Kept, Note, Record, UnknownRecord};
use crate::definition::TableSchema;

/// Of the files that this program writes, and the only one that it reads. The docs of the store's
/// module say when it is raised.
pub(crate) const FORMAT: u32 = 1;

pub(crate) const NAME: &str = "catalog";
const DRAFT: &str = "catalog.new";

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Catalog {
    pub(crate) head: CatalogHead,
    pub(crate) tables: Vec<(u64, Arc<TableSchema>)>,
    pub(crate) shapes: Vec<Kept>,
}

impl Catalog {
    pub(crate) fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut put = |note: Note| drop(record::frame(&Record::Note(note, Bytes::new()), &mut bytes));
        put(Note::Catalog(CatalogHead { format: FORMAT, ..self.head.clone() }));
        self.tables
            .iter()
            .for_each(|(id, table)| put(Note::Table { id: *id, table: Box::new(TableSchema::clone(table)) }));
        self.shapes.iter().for_each(|shape| put(Note::Shape(Box::new(shape.clone()))));
        put(Note::End { shapes: self.shapes.len() });
        let file = disk.create(DRAFT)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        // When this fails, nobody knows which of the two is there: it isn't for lack of room, and isn't tried again.
        disk.rename(DRAFT, NAME).and_then(|()| disk.sync_dir("")).map_err(io::Error::other)
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
        let unreadable = |unknown: UnknownRecord| OpenError::Unreadable {
            file: NAME.to_owned(),
            what: unknown.to_string(),
        };
        while let Some((Record::Note(note, _), length)) = record::next(&bytes).map_err(unreadable)? {
            let _read = bytes.split_to(length);
            match note {
                Note::Catalog(head) if is_first && head.format != FORMAT => {
                    return Err(OpenError::Format { found: head.format, known: FORMAT });
                }
                Note::Catalog(head) if is_first => catalog.head = head,
                Note::Table { id, table } => catalog.tables.push((id, table.into())),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{CatalogState, LogMode, ReplicaMode, ShapeOptions};
    use crate::simulation::simulated_database::table;
    use crate::store::disk::SimulatedDisk;
    use crate::store::record::{Completed, KeptLog, Seen};

    fn some() -> Catalog {
        let table = Arc::new(table(100, "items", vec![0]));
        let choice = ShapeOptions {
            clause: Some("qty > 5".into()),
            columns: Some(vec!["id".into()]),
            replica: ReplicaMode::Full,
            log: LogMode::ChangesOnly,
        };
        let seen = Seen { xmin: 1, xmax: 5, xip: vec![3], lsn: 7 };
        let snapshot = Some(Completed { id: 4, seen, len: 900, chunks: vec![500, 900] });
        let log =
            KeptLog { len: 70, last: (9, 4), chunks: vec![(60, 9, 2)], base: 20, past: vec![(15, 4, 2)] };
        let kept = Kept { id: 4, handle: "1-2".into(), table: 8, choice, snapshot, log };
        let incomplete = Kept { id: 5, snapshot: None, ..kept.clone() };
        let state = CatalogState { columns: vec![(1, 700)], facts: vec![-3], ..CatalogState::default() };
        let head = CatalogHead {
            format: FORMAT,
            origin: Some("here".into()),
            segment: 3,
            states: vec![(100, state)],
            ..CatalogHead::default()
        };
        Catalog { head, tables: vec![(8, table)], shapes: vec![kept, incomplete] }
    }

    #[test]
    fn a_catalog_is_read_as_it_was_written_and_not_at_all_where_there_is_none() {
        let disk = SimulatedDisk::new(1);
        assert_eq!(Catalog::read(&disk).unwrap(), None);
        some().write(&disk).unwrap();
        assert_eq!(Catalog::read(&disk).unwrap(), Some(some()));
    }

    #[test]
    fn a_catalog_of_the_release_before_has_no_states() {
        let head = serde_json::to_value(some().head).unwrap();
        let mut before = head.clone();
        before.as_object_mut().unwrap().remove("states");
        let read: CatalogHead = serde_json::from_value(before).unwrap();
        assert_eq!(read, CatalogHead { states: Vec::new(), ..some().head });
        let mut before = serde_json::to_value(table(100, "items", vec![0])).unwrap();
        before.as_object_mut().unwrap().retain(|field, _| field != "state" && field != "key_is_deferrable");
        assert_eq!(serde_json::from_value::<TableSchema>(before).unwrap(), table(100, "items", vec![0]));
    }

    #[test]
    fn a_damaged_catalog_is_refused_wherever_the_damage_is() {
        let disk = SimulatedDisk::new(1);
        some().write(&disk).unwrap();
        let file = disk.open(NAME).unwrap();
        let bytes = files::read(&*file, 0, file.len().unwrap()).unwrap();
        for at in 0..bytes.len() {
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            assert!(matches!(Catalog::read(&disk), Err(OpenError::Damaged { file: NAME })), "byte {at}");
            file.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        for len in 0..bytes.len() {
            file.write_all_at(&bytes, 0).unwrap();
            file.set_len(len as u64).unwrap();
            assert!(matches!(Catalog::read(&disk), Err(OpenError::Damaged { file: NAME })), "{len} bytes");
        }
    }

    #[test]
    fn a_catalog_of_another_version_says_so() {
        let disk = SimulatedDisk::new(1);
        let mut bytes = Vec::new();
        let note = Note::Catalog(CatalogHead { format: FORMAT + 1, ..CatalogHead::default() });
        let _nothing = record::frame(&Record::Note(note, Bytes::new()), &mut bytes);
        disk.create(NAME).unwrap().write_all_at(&bytes, 0).unwrap();
        let refused = Catalog::read(&disk);
        assert!(matches!(refused, Err(OpenError::Format { found, known: FORMAT }) if found == FORMAT + 1));
    }
}
