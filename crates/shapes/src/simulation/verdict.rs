//! Whether a store keeps what was promised.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tokio::runtime::Builder;

use super::database::Database;
use super::world::{Promised, World};
use crate::encode::place_of;
use crate::offset::Offset;
use crate::shape::{Phase, Shape, SnapshotChunk};
use crate::shapes::Shapes;
use crate::store::disk::Dice;

/// What can be read of a store: of each complete shape, the snapshot and the log.
pub(super) type Visible = BTreeMap<String, (Vec<u8>, Vec<u8>)>;

/// Reads everything, as clients do.
pub(super) fn visible(store: &Shapes, dice: &mut Dice) -> Visible {
    complete(store)
        .map(|shape| (shape.handle().to_owned(), read(&shape, dice).expect("it can be read")))
        .collect()
}

/// The same beside a writer, which may be deleting the files of a shape. Who reads on finds out.
pub(super) fn visible_while_written(store: &Shapes, dice: &mut Dice) -> Visible {
    let mut visible = Visible::new();
    for shape in complete(store) {
        match read(&shape, dice) {
            Ok(read) => drop(visible.insert(shape.handle().to_owned(), read)),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::NotFound);
                store.refresh().expect("it can be read");
                assert!(shape.gone().is_some(), "a shape that is there can be read");
            }
        }
    }
    visible
}

fn complete(store: &Shapes) -> impl Iterator<Item = Arc<Shape>> {
    store.all().into_iter().filter(|shape| shape.lock().phase == Phase::Complete)
}

fn read(shape: &Shape, dice: &mut Dice) -> io::Result<(Vec<u8>, Vec<u8>)> {
    Ok((snapshot(shape)?, log(shape, dice)?))
}

/// All chunks of the snapshot.
fn snapshot(shape: &Shape) -> io::Result<Vec<u8>> {
    let (runtime, mut bytes) = (Builder::new_current_thread().build()?, Vec::new());
    for index in 0.. {
        match runtime.block_on(shape.snapshot_chunk(index)).map_err(|_| io::ErrorKind::NotFound)? {
            SnapshotChunk::Closed { from, to } => {
                assert_eq!(from, bytes.len() as u64);
                bytes.extend(shape.read_snapshot(from, to)?.concat());
            }
            SnapshotChunk::Open { .. } => panic!("a complete snapshot has no open chunk"),
            SnapshotChunk::None => break,
        }
    }
    Ok(bytes)
}

/// The log from its beginning, page by page; and from some place in it, which must be the same.
fn log(shape: &Shape, dice: &mut Dice) -> io::Result<Vec<u8>> {
    let bytes = log_after(shape, Offset::SNAPSHOT_END)?;
    let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    if !lines.is_empty() {
        let at = dice.between(0, lines.len() - 1);
        let offset = place_of(lines[at]).expect("a message has a place");
        for offset in
            [offset, Offset::new(offset.lsn, 0), Offset::new(offset.lsn, offset.op.saturating_sub(1))]
        {
            let first = lines.iter().position(|line| place_of(line).is_some_and(|place| place > offset));
            let expected = lines[first.unwrap_or(lines.len())..].concat();
            // Beside a writer there may be more by now.
            assert!(log_after(shape, offset)?.starts_with(&expected), "after {offset}");
        }
    }
    Ok(bytes)
}

fn log_after(shape: &Shape, offset: Offset) -> io::Result<Vec<u8>> {
    let (mut bytes, mut page) = (Vec::new(), shape.log_after(offset)?);
    loop {
        let read = shape.read_log(page.from, page.to)?.concat();
        if let Some(last) = read.split_inclusive(|byte| *byte == b'\n').next_back() {
            assert_eq!(place_of(last), Some(page.last));
        }
        bytes.extend(read);
        if page.is_end {
            return Ok(bytes);
        }
        page = shape.log_from(page.to);
    }
}

impl World {
    /// Everything is as it was promised. Only when the store is idle.
    pub(super) fn verify(&mut self) {
        let store = self.store.clone();
        let visible = visible(&store, &mut self.dice);
        let position = store.position().map_or(0, |position| position.lsn);
        let model = &self.model;
        assert!(
            position >= model.acknowledged,
            "{} was acknowledged, and it is at {position}",
            model.acknowledged
        );
        for (handle, (snapshot, log)) in &visible {
            let promised = model.promised.get(handle).unwrap_or_else(|| panic!("nobody made {handle}"));
            let rows = snapshot.strip_prefix(&*promised.rows).expect("a snapshot begins with its rows");
            let end = rows.strip_suffix(b",\n").expect("a snapshot ends with a message");
            let end: serde_json::Value = serde_json::from_slice(end).expect("it is one message");
            assert_eq!(end["headers"]["control"], "snapshot-end");
            let told = promised.told(&model.database, position);
            assert_eq!(told.as_deref().map(text), Some(text(log)), "the log of {handle} at {position}");
            assert!(
                log.len() as u64 >= promised.read,
                "of {handle}, {} bytes were read before",
                promised.read
            );
        }
        let waiting: u64 = store.all().iter().map(|shape| shape.lock().waiting()).sum();
        assert_eq!(store.inner.files.unwritten(), waiting);
        for (handle, promised) in &model.promised {
            let may_be_gone = promised.is_unwanted || promised.dies(&model.database, model.came);
            let is_there = visible.contains_key(handle);
            assert!(is_there || !promised.is_complete || may_be_gone, "{handle} is gone");
        }
    }
}

impl Promised {
    /// The log at a position; `None`: the shape is gone by then.
    fn told(&self, database: &Database, position: u64) -> Option<Vec<u8>> {
        let told = (self.seen..database.log.len()).take_while(|index| database.log[*index].end <= position);
        let told = told.map(|index| database.told(index, self.table, self.clause, &self.definition));
        told.collect::<Option<Vec<_>>>().map(|told| told.concat())
    }

    /// Whether one of the first transactions can't be told to it.
    fn dies(&self, database: &Database, came: usize) -> bool {
        (self.seen..came)
            .any(|index| database.told(index, self.table, self.clause, &self.definition).is_none())
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}
