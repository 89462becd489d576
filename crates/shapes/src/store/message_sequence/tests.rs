//! A sequence and its file, compared with a plain list of messages.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::encode::{ColumnSchema, LogPosition, RowEncoder, ShapeChange};
use crate::store::disk::{Disk, DiskFile, SimulatedDisk};
use crate::store::shape_files;

/// Returns a message of a log that isn't the last of its transaction.
pub(crate) fn message(offset: Offset, width: usize) -> Vec<u8> {
    let encoder = RowEncoder::new(
        "public",
        "t",
        &[ColumnSchema { name: "id".into(), key_index: Some(0) }],
        &[0],
        false,
    );
    let (place, mut out) = (LogPosition { lsn: offset.lsn, op: offset.op, xid: 7 }, Vec::new());
    assert!(encoder.change(&mut out, ShapeChange::Insert { row: &[Some(b"")], from: None }, place));
    // Escaping long values is slow in an unoptimized build.
    let value = memchr::memmem::find(&out, b"\"id\":\"").expect("there is a value") + b"\"id\":\"".len();
    out.splice(value..value, std::iter::repeat_n(b'x', width));
    out
}

/// Returns the message with the ending of its transaction's last one.
fn last(mut message: Vec<u8>) -> Vec<u8> {
    message.truncate(message.len() - MORE.len());
    message.extend_from_slice(LAST);
    message
}

/// Reads a located range.
fn read(file: &dyn DiskFile, found: ByteLocation) -> Vec<u8> {
    let mut bytes =
        found.file.map_or(Vec::new(), |(from, to)| shape_files::read_range(file, from, to).unwrap());
    found.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Expected sequence: visible messages, then staged ones.
#[derive(Default)]
struct ModelSequence {
    messages: Vec<(Offset, Vec<u8>)>,
    visible: usize,
    lsn: u64,
}

impl ModelSequence {
    fn bytes(&self) -> Vec<u8> {
        self.messages[..self.visible].iter().flat_map(|(_, message)| message.clone()).collect()
    }

    /// Returns the expected chunks: each closes with the message that reaches the threshold.
    fn chunks(&self, chunk_bytes: u64) -> Vec<ClosedChunk> {
        let (mut chunks, mut start, mut end) = (Vec::new(), 0, 0);
        for (offset, message) in &self.messages[..self.visible] {
            end += message.len() as u64;
            if end - start >= chunk_bytes {
                chunks.push(ClosedChunk { end, last: *offset });
                start = end;
            }
        }
        chunks
    }

    fn after(&self, offset: Offset) -> u64 {
        let before = self.messages[..self.visible].iter().take_while(|(other, _)| *other <= offset);
        before.map(|(_, message)| message.len() as u64).sum()
    }
}

/// A sequence, its file, and the expected messages.
struct SequenceUnderTest {
    sequence: MessageSequence,
    file: Arc<dyn DiskFile>,
    model: ModelSequence,
    chunk_bytes: u64,
}

/// An operation on a sequence.
#[derive(Debug, Clone)]
enum SequenceStep {
    /// A range of messages of the open transaction, by their widths.
    Stage(Vec<usize>),
    Commit,
    Abandon,
    /// Write all bytes to the file, or only the visible ones.
    Spill {
        all: bool,
    },
    /// Load the sequence from its catalog entry, as after a restart.
    Reload,
}

impl SequenceUnderTest {
    fn new(chunk_bytes: u64) -> Self {
        let disk = SimulatedDisk::new(0);
        let file = disk.create("log").unwrap();
        SequenceUnderTest {
            sequence: MessageSequence::empty_log(),
            file,
            model: ModelSequence { lsn: 10, ..ModelSequence::default() },
            chunk_bytes,
        }
    }

    fn run(&mut self, step: &SequenceStep) {
        let ModelSequence { messages, visible, lsn } = &mut self.model;
        match step {
            SequenceStep::Stage(widths) => {
                let mut bytes = Vec::new();
                for width in widths {
                    let offset = Offset::new(*lsn, 2 * (messages.len() - *visible) as u64);
                    let message = message(offset, *width);
                    bytes.extend_from_slice(&message);
                    messages.push((offset, message));
                }
                let last = messages.last().expect("a range has messages").0;
                self.sequence.stage(bytes.into(), last, self.chunk_bytes);
            }
            SequenceStep::Commit => {
                if let [.., (_, message)] = &mut messages[*visible..] {
                    *message = last(std::mem::take(message));
                }
                (*visible, *lsn) = (messages.len(), *lsn + 10);
                self.sequence.finish_transaction(self.chunk_bytes);
                self.sequence.publish();
            }
            SequenceStep::Abandon => {
                // Postgres sends the same transaction again. For a sequence it may be a different
                // one.
                messages.truncate(*visible);
                self.sequence.abandon();
            }
            SequenceStep::Spill { all } => self.spill(*all),
            SequenceStep::Reload => {
                self.run(&SequenceStep::Abandon);
                self.spill(false);
                self.sequence = MessageSequence::from_catalog(&self.sequence.to_catalog());
            }
        }
        self.check();
    }

    fn spill(&mut self, all: bool) {
        let up_to = if all { u64::MAX } else { self.sequence.len() };
        let (mut at, pieces) = self.sequence.unwritten(up_to);
        for piece in pieces {
            self.file.write_all_at(&piece, at).unwrap();
            at += piece.len() as u64;
        }
        self.sequence.mark_written(at);
    }

    fn check(&self) {
        let (sequence, bytes) = (&self.sequence, self.model.bytes());
        assert_eq!(sequence.len(), bytes.len() as u64);
        assert_eq!(sequence.chunks(), self.model.chunks(self.chunk_bytes));
        let visible = &self.model.messages[..self.model.visible];
        assert_eq!(sequence.last(), visible.last().map_or(Offset::SNAPSHOT_END, |(offset, _)| *offset));
        assert_eq!(read(&*self.file, sequence.locate(0, sequence.len())), bytes);
        let ends =
            [0, 1, sequence.len() / 3, sequence.len() / 2, sequence.len()].map(|at| at.min(sequence.len()));
        for from in ends {
            for to in ends.into_iter().filter(|to| *to >= from) {
                let expected = &bytes[from as usize..to as usize];
                assert_eq!(read(&*self.file, sequence.locate(from, to)), expected, "{from}..{to}");
            }
        }
        let beside =
            |offset: Offset| [offset, Offset::new(offset.lsn, offset.op + 1), Offset::new(offset.lsn + 1, 0)];
        let ends = [Offset::FIRST, Offset::SNAPSHOT_END, Offset::new(u64::MAX, 0)];
        for offset in visible.iter().flat_map(|(offset, _)| beside(*offset)).chain(ends) {
            let found = match sequence.seek(offset) {
                SeekResult::At(at) => at,
                SeekResult::InFile(from, to) => shape_files::seek(&*self.file, from, to, offset).unwrap(),
            };
            assert_eq!(found, self.model.after(offset), "after {offset}");
        }
    }
}

fn step() -> impl Strategy<Value = SequenceStep> {
    let width = prop_oneof![8 => 0..40_usize, 2 => 400..5000_usize, 1 => 65_000..70_000_usize];
    prop_oneof![
        6 => prop::collection::vec(width, 1..5).prop_map(SequenceStep::Stage),
        4 => Just(SequenceStep::Commit),
        1 => Just(SequenceStep::Abandon),
        1 => Just(SequenceStep::Spill { all: true }),
        1 => Just(SequenceStep::Spill { all: false }),
        1 => Just(SequenceStep::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_sequence_returns_its_messages_from_memory_and_file(
        chunk_bytes in prop_oneof![Just(1_u64), 100..500_u64, 1000..200_000_u64],
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let mut tested = SequenceUnderTest::new(chunk_bytes);
        steps.iter().for_each(|step| tested.run(step));
    }
}

#[test]
fn a_chunk_closes_with_the_message_that_reaches_the_exact_threshold() {
    let one = message(Offset::new(10, 0), 30).len() as u64;
    let grown = one + (LAST.len() - MORE.len()) as u64;
    for (chunk_bytes, chunks) in
        [(one, vec![one, one + grown]), (one + 1, vec![one + grown]), (one + grown + 1, vec![])]
    {
        let mut tested = SequenceUnderTest::new(chunk_bytes);
        tested.run(&SequenceStep::Stage(vec![30, 30]));
        assert!(tested.sequence.chunks().is_empty(), "staged chunks aren't visible");
        tested.run(&SequenceStep::Commit);
        assert_eq!(tested.sequence.chunks().iter().map(|chunk| chunk.end).collect::<Vec<_>>(), chunks);
    }
    // The message reaches the threshold only with its `LAST` ending.
    let mut tested = SequenceUnderTest::new(grown);
    tested.run(&SequenceStep::Stage(vec![30]));
    tested.run(&SequenceStep::Commit);
    assert_eq!(tested.sequence.chunks().len(), 1);
}

#[test]
fn a_message_written_to_the_file_before_its_commit_is_marked_as_last() {
    for chunk_bytes in [1, 1_000_000] {
        let mut tested = SequenceUnderTest::new(chunk_bytes);
        tested.run(&SequenceStep::Stage(vec![10, 20]));
        tested.run(&SequenceStep::Spill { all: true });
        tested.run(&SequenceStep::Commit);
        tested.run(&SequenceStep::Spill { all: false });
        assert_eq!(tested.sequence.unwritten_bytes(), 0);
    }
}

#[test]
fn messages_after_an_abandoned_part_that_was_in_the_file_are_found() {
    let mut tested = SequenceUnderTest::new(1_000_000);
    tested.run(&SequenceStep::Stage(vec![10]));
    tested.run(&SequenceStep::Commit);
    tested.run(&SequenceStep::Spill { all: false });
    tested.run(&SequenceStep::Stage(vec![10, 10, 10]));
    tested.run(&SequenceStep::Spill { all: true });
    tested.run(&SequenceStep::Abandon);
    tested.run(&SequenceStep::Stage(vec![20, 20]));
    tested.run(&SequenceStep::Commit);
}

#[test]
fn snapshot_rows_are_visible_at_once_and_have_numbered_chunks() {
    let mut sequence = MessageSequence::default();
    let row = |text: &str| Bytes::from(format!("{text},\n"));
    sequence.append_rows(row("aaaa"), false, 8);
    sequence.append_rows(row("bbbb"), false, 8);
    sequence.append_rows(row("cc"), false, 8);
    sequence.close_chunk();
    let chunk = |index, end| ClosedChunk { end, last: Offset::new(0, index) };
    // The first row has six bytes with its separator. The second one reaches the threshold.
    assert_eq!(sequence.chunks(), [chunk(0, 12), chunk(1, 16)]);
    sequence.close_chunk();
    assert_eq!(sequence.chunks().len(), 2, "no chunk is empty");
    let completed = CompletedSnapshot {
        id: 1,
        seen: crate::store::record::SnapshotVisibility { xmin: 1, xmax: 1, xip: vec![], lsn: 1 },
        len: sequence.len(),
        chunks: sequence.chunks().iter().map(|chunk| chunk.end).collect(),
    };
    let bytes = sequence.locate(0, sequence.len()).pieces.concat();
    let again = MessageSequence::from_snapshot(&completed, bytes.clone().into());
    assert_eq!((again.chunks(), again.len()), (sequence.chunks(), sequence.len()));
    assert_eq!(again.locate(0, again.len()).pieces.concat(), bytes);
    let in_file = MessageSequence::from_snapshot(&completed, Bytes::new());
    assert_eq!(in_file.locate(0, in_file.len()).file, Some((0, in_file.len())));
}

#[test]
fn seeking_after_the_last_message_returns_the_end_even_if_the_log_has_a_later_offset() {
    // Former versions logged transactions without a message for a shape.
    let empty = |sequence: &mut MessageSequence| {
        sequence.stage(Bytes::new(), Offset::new(20, 0), 100);
        sequence.finish_transaction(100);
        sequence.publish();
    };
    let mut sequence = MessageSequence::empty_log();
    empty(&mut sequence);
    assert_eq!(sequence.seek(Offset::new(1, 0)), SeekResult::At(0));
    assert_eq!(
        MessageSequence::from_catalog(&sequence.to_catalog()).seek(Offset::new(1, 0)),
        SeekResult::At(0)
    );
    let mut tested = SequenceUnderTest::new(1000);
    tested.run(&SequenceStep::Stage(vec![10]));
    tested.run(&SequenceStep::Commit);
    empty(&mut tested.sequence);
    assert_eq!(tested.sequence.seek(Offset::new(15, 0)), SeekResult::At(tested.sequence.len()));
    tested.spill(false);
    assert_eq!(tested.sequence.seek(Offset::new(15, 0)), SeekResult::At(tested.sequence.len()));
}
