//! A consumer that writes a durable file: one line of JSON for each transaction, reset, timeline
//! and recorded position.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_replication::pgoutput::{Lsn, OldTuple, PgOutputMessage, RelationCache, Tuple, TupleValue};
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, MessageBatch, ResetReason, Timeline,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum JournalLine {
    Reset(String, Bookmark),
    Adopt(Timeline),
    Transaction(JournalTransaction),
    Advance(u64),
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct JournalTransaction {
    pub(crate) xid: u32,
    pub(crate) end: u64,
    pub(crate) changes: Vec<JournalChange>,
}

/// A change of a row. Columns are text; `?` is an unchanged value that the server didn't send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum JournalChange {
    Insert(String, Vec<Option<String>>),
    Update(String, Option<OldRow>, Vec<Option<String>>),
    Delete(String, OldRow),
    Truncate(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum OldRow {
    Key(Vec<Option<String>>),
    Full(Vec<Option<String>>),
}

/// Reads the complete lines of a journal.
pub(crate) fn read(path: &Path) -> Vec<JournalLine> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        file.read_to_string(&mut text).unwrap();
    }
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a complete line is valid JSON")).collect()
}

/// Collects messages into transactions.
#[derive(Default)]
pub(crate) struct TransactionRecorder {
    open: JournalTransaction,
    relations: RelationCache,
}

impl TransactionRecorder {
    pub(crate) fn take(&mut self, message: &PgOutputMessage<'_>) -> Option<JournalTransaction> {
        match message {
            PgOutputMessage::Begin(begin) => {
                self.open = JournalTransaction { xid: begin.xid, ..JournalTransaction::default() }
            }
            PgOutputMessage::Relation(relation) => _ = self.relations.apply(relation),
            PgOutputMessage::Insert(insert) => {
                self.record(JournalChange::Insert(self.name(insert.relation), row(insert.new)))
            }
            PgOutputMessage::Update(update) => {
                let name = self.name(update.relation);
                self.record(JournalChange::Update(name, update.old.map(old), row(update.new)));
            }
            PgOutputMessage::Delete(delete) => {
                self.record(JournalChange::Delete(self.name(delete.relation), old(delete.old)))
            }
            PgOutputMessage::Truncate(truncate) => {
                let tables = truncate.relations.iter().map(|oid| self.name(oid)).collect();
                self.record(JournalChange::Truncate(tables));
            }
            PgOutputMessage::Commit(commit) => {
                self.open.end = commit.end_lsn.0;
                return Some(std::mem::take(&mut self.open));
            }
            _ => {}
        }
        None
    }

    fn record(&mut self, change: JournalChange) {
        self.open.changes.push(change);
    }

    fn name(&self, oid: u32) -> String {
        let table = self.relations.get(oid).expect("a relation comes before its changes");
        format!("{}.{}", table.namespace, table.name)
    }
}

/// Consumer that writes the journal.
pub(crate) struct JournalConsumer {
    path: PathBuf,
    file: File,
    recorder: TransactionRecorder,
    durable: Option<DurablePosition>,
    /// While a test holds this lock, `receive` waits.
    pub(crate) gate: Arc<tokio::sync::Mutex<()>>,
    /// Number of batches to panic at.
    pub(crate) panics: Arc<Mutex<u32>>,
}

impl JournalConsumer {
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        // Removes the incomplete last line of a killed process.
        let whole =
            std::fs::read(path).unwrap().iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).unwrap();
        JournalConsumer {
            path: path.to_owned(),
            file,
            recorder: TransactionRecorder::default(),
            durable: None,
            gate: Arc::default(),
            panics: Arc::default(),
        }
    }

    fn write(&mut self, lines: &[JournalLine]) -> Result<(), ConsumerError> {
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line).expect("a line can be serialized");
            text.push('\n');
        }
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(ConsumerError::fatal)
    }
}

impl Consumer for JournalConsumer {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        let mut bookmark = None;
        for line in read(&self.path) {
            match (line, &mut bookmark) {
                (JournalLine::Reset(_, begin), bookmark) => *bookmark = Some(begin),
                (JournalLine::Adopt(timeline), Some(bookmark)) => bookmark.timeline = timeline,
                (
                    JournalLine::Transaction(JournalTransaction { end, .. }) | JournalLine::Advance(end),
                    Some(bookmark),
                ) => {
                    bookmark.durable = Lsn(end);
                }
                (line, None) => return Err(ConsumerError::fatal(format!("{line:?} before the beginning"))),
            }
        }
        Ok(bookmark)
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.write(&[JournalLine::Reset(reason.as_str().into(), begin)])
    }

    async fn record_timeline(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.write(&[JournalLine::Adopt(timeline)])
    }

    fn start(&mut self, durable: DurablePosition) {
        self.recorder = TransactionRecorder::default();
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        drop(self.gate.lock().await);
        {
            let mut panics = self.panics.lock();
            if *panics > 0 {
                *panics -= 1;
                drop(panics);
                panic!("requested by the test");
            }
        }
        let mut done = Vec::new();
        while let Some(message) = batch.next() {
            done.extend(self.recorder.take(&message).map(JournalLine::Transaction));
        }
        if let Some(JournalLine::Transaction(last)) = done.last() {
            let end = Lsn(last.end);
            self.write(&done)?;
            self.durable.as_ref().expect("a stream has begun").advance(end);
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.write(&[JournalLine::Advance(lsn.0)])?;
        self.durable.as_ref().expect("a stream has begun").advance(lsn);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}

fn old(tuple: OldTuple<'_>) -> OldRow {
    match tuple {
        OldTuple::Key(tuple) => OldRow::Key(row(tuple)),
        OldTuple::Full(tuple) => OldRow::Full(row(tuple)),
    }
}

fn row(tuple: Tuple<'_>) -> Vec<Option<String>> {
    let column = |value: TupleValue<'_>| match value {
        TupleValue::Null => None,
        TupleValue::Unchanged => Some("?".to_owned()),
        TupleValue::Text(bytes) | TupleValue::Binary(bytes) => {
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        }
    };
    tuple.iter().map(column).collect()
}
