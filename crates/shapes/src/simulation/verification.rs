//! Verification: compares the readable bytes of a store with the model.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tokio::runtime::Builder;

use super::simulated_database::{SimulatedDatabase, SimulatedTransaction};
use super::store_simulation::{ModelShape, StoreSimulation};
use crate::encode::offset_of;
use crate::offset::Offset;
use crate::shape::{Shape, ShapePhase, SnapshotChunk};
use crate::shapes::Shapes;
use crate::store::disk::SimulatedRng;

/// Readable bytes of a store: snapshot and log of each complete shape, by handle.
pub(super) type VisibleShapes = BTreeMap<String, (Vec<u8>, Vec<u8>)>;

/// Reads all complete shapes, as clients do.
pub(super) fn visible(store: &Shapes, rng: &mut SimulatedRng) -> VisibleShapes {
    complete(store)
        .map(|shape| (shape.handle().to_owned(), read(&shape, rng).expect("the shape is readable")))
        .collect()
}

/// Reads all complete shapes while another process writes. A shape, or the old files of a merged
/// log, may be deleted during a read; a refresh shows which.
pub(super) fn visible_while_written(store: &Shapes, rng: &mut SimulatedRng) -> VisibleShapes {
    let mut visible = VisibleShapes::new();
    for shape in complete(store) {
        let read = loop {
            match read(&shape, rng) {
                Ok(read) => break Some(read),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            }
            let base = shape.lock().log.base();
            store.refresh().expect("the store is readable");
            if shape.gone().is_some() {
                break None;
            }
            assert!(shape.lock().log.base() > base, "an existing shape is unreadable");
        };
        visible.extend(read.map(|read| (shape.handle().to_owned(), read)));
    }
    visible
}

fn complete(store: &Shapes) -> impl Iterator<Item = Arc<Shape>> {
    store.all().into_iter().filter(|shape| shape.lock().phase == ShapePhase::Complete)
}

fn read(shape: &Shape, rng: &mut SimulatedRng) -> io::Result<(Vec<u8>, Vec<u8>)> {
    Ok((snapshot(shape)?, log(shape, rng)?))
}

/// Reads all chunks of a snapshot.
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

/// Reads the log page by page. Also reads it from a random offset, and compares both.
fn log(shape: &Shape, rng: &mut SimulatedRng) -> io::Result<Vec<u8>> {
    let bytes = log_after(shape, Offset::SNAPSHOT_END)?;
    let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    if !lines.is_empty() {
        let at = rng.between(0, lines.len() - 1);
        let offset = offset_of(lines[at]).expect("a message has an offset");
        for offset in
            [offset, Offset::new(offset.lsn, 0), Offset::new(offset.lsn, offset.op.saturating_sub(1))]
        {
            let first = lines.iter().position(|line| offset_of(line).is_some_and(|place| place > offset));
            let expected = lines[first.unwrap_or(lines.len())..].concat();
            // A writer may have added messages meanwhile.
            assert!(log_after(shape, offset)?.starts_with(&expected), "after {offset}");
        }
    }
    Ok(bytes)
}

fn log_after(shape: &Shape, offset: Offset) -> io::Result<Vec<u8>> {
    let (mut bytes, mut page) = (Vec::new(), shape.log_after(offset)?);
    loop {
        let read = shape.read_log(&page, page.from, page.to)?.concat();
        if let Some(last) = read.split_inclusive(|byte| *byte == b'\n').next_back() {
            assert_eq!(offset_of(last), Some(page.last));
        }
        bytes.extend(read);
        if page.is_end {
            return Ok(bytes);
        }
        page = shape.log_after(page.last)?;
    }
}

impl StoreSimulation {
    /// Compares the store with the model. The store must be idle.
    pub(super) fn verify(&mut self) {
        let store = self.store.clone();
        let visible = visible(&store, &mut self.rng);
        let position = store.position().map_or(0, |position| position.lsn);
        let durable = store.engine.store.progress.durable();
        let model = &self.model;
        assert!(
            position >= model.acknowledged,
            "position {} was acknowledged, and the store is at {position}",
            model.acknowledged
        );
        for (handle, (snapshot, log)) in &visible {
            let shape = model.shapes.get(handle).unwrap_or_else(|| panic!("unknown handle {handle}"));
            let rows = snapshot.strip_prefix(&*shape.rows).expect("a snapshot begins with its rows");
            let end = rows.strip_suffix(b",\n").expect("a snapshot ends with a message");
            let end: serde_json::Value = serde_json::from_slice(end).expect("one message follows the rows");
            assert_eq!(end["headers"]["control"], "snapshot-end");
            let found = store.find(handle).expect("the shape was read");
            // Other shapes don't wait for a held one.
            let (base, held_from) = {
                let state = found.lock();
                (state.log.base(), state.held_from.unwrap_or(u64::MAX))
            };
            let expected = shape.expected_log(&model.database, |it| it.end <= durable && it.lsn < held_from);
            let expected = expected.unwrap_or_else(|| panic!("{handle} should be deleted before {durable}"));
            // An up-to-date states that the log has all earlier transactions.
            let seen = store.seen_of(&found);
            let stated = shape.expected_log(&model.database, |it| it.lsn < seen).map(|log| log.len());
            assert!(
                stated.is_some_and(|stated| stated <= expected.len()),
                "{handle} isn't up to date at {seen}"
            );
            self.merged += usize::from(base > 0);
            check_log(&shape.rows, &expected, base as usize, log, &mut self.rng);
            assert!(expected.len() as u64 >= shape.read, "{} bytes of {handle} were read before", shape.read);
        }
        let waiting: u64 = store.all().iter().map(|shape| shape.lock().unwritten_bytes()).sum();
        assert_eq!(store.engine.store.files.unwritten(), waiting);
        for (handle, shape) in &model.shapes {
            let may_be_gone =
                shape.is_deletion_requested || shape.must_be_deleted(&model.database, model.sent);
            let is_there = visible.contains_key(handle);
            assert!(is_there || !shape.is_complete || may_be_gone, "{handle} is gone");
        }
    }
}

impl ModelShape {
    /// Returns the expected log after the first transactions that fulfil `is_included`; `None`: the
    /// shape is deleted by then.
    fn expected_log(
        &self,
        database: &SimulatedDatabase,
        is_included: impl Fn(&SimulatedTransaction) -> bool,
    ) -> Option<Vec<u8>> {
        let indexes = (self.seen..database.log.len()).take_while(|index| is_included(&database.log[*index]));
        let messages =
            indexes.map(|index| database.expected_messages(index, self.table, self.clause, &self.definition));
        messages.collect::<Option<Vec<_>>>().map(|messages| messages.concat())
    }

    /// Returns whether one of the first `sent` transactions deletes the shape.
    fn must_be_deleted(&self, database: &SimulatedDatabase, sent: usize) -> bool {
        (self.seen..sent).any(|index| {
            database.expected_messages(index, self.table, self.clause, &self.definition).is_none()
        })
    }
}

/// Checks that a client that has read `before` can continue with `now`, a later log.
pub(super) fn check_continues(snapshot: &[u8], before: &[u8], now: &[u8]) {
    if now.starts_with(before) {
        return;
    }
    let place = |line: &[u8]| offset_of(line).expect("a message has an offset");
    let last = before.split_inclusive(|byte| *byte == b'\n').next_back().map_or(Offset::SNAPSHOT_END, place);
    let (mut continued, mut fresh) = (ClientRows::default(), ClientRows::default());
    [snapshot, before].into_iter().for_each(|messages| continued.apply(messages));
    let after = now.split_inclusive(|byte| *byte == b'\n').filter(|line| place(line) > last);
    after.for_each(|line| continued.apply(line));
    [snapshot, now].into_iter().for_each(|messages| fresh.apply(messages));
    assert_eq!(continued, fresh, "after {last}");
}

/// Checks a log. After the base, it must have the expected bytes. Before it, reading from a random
/// offset must lead to the same rows.
fn check_log(snapshot: &[u8], expected: &[u8], base: usize, log: &[u8], rng: &mut SimulatedRng) {
    let recent = text(&expected[base..]);
    assert_eq!(text(&log[log.len() - recent.len().min(log.len())..]), recent);
    if base == 0 {
        assert_eq!(text(log), recent);
        return;
    }
    let lines: Vec<_> = expected.split_inclusive(|byte| *byte == b'\n').collect();
    let read = rng.between(0, lines.len());
    let mut rows = ClientRows::default();
    rows.apply(snapshot);
    rows.apply(&lines[..read].concat());
    let place =
        read.checked_sub(1).map_or(Offset::SNAPSHOT_END, |last| offset_of(lines[last]).expect("an offset"));
    let mut continued = rows.clone();
    rows.apply(&lines[read..].concat());
    let after = log
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| offset_of(line).is_some_and(|it| it > place));
    after.for_each(|line| continued.apply(line));
    assert_eq!(continued, rows, "after {place}, merged up to {base}");
}

/// Rows of a client, by key.
#[derive(Debug, Clone, Default, PartialEq)]
struct ClientRows(BTreeMap<String, serde_json::Map<String, serde_json::Value>>);

impl ClientRows {
    fn apply(&mut self, messages: &[u8]) {
        for line in messages.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b",\n").expect("a whole message");
            let message: serde_json::Value = serde_json::from_slice(line).expect("a message is JSON");
            if message["headers"].get("control").is_some() {
                continue;
            }
            let key = message["key"].as_str().expect("a key").to_owned();
            let value = message["value"].as_object().expect("a row").clone();
            match message["headers"]["operation"].as_str() {
                // In the table without a key, an equal row may exist.
                Some("insert") => {
                    let before = self.0.insert(key, value.clone());
                    assert!(before.is_none_or(|before| before == value), "the inserted row exists");
                }
                Some("update") => self.0.get_mut(&key).expect("the updated row exists").extend(value),
                Some("delete") => assert!(self.0.remove(&key).is_some(), "the deleted row is missing"),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("messages are UTF-8")
}
