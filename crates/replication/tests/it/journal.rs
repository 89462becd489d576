//! A consumer that writes a durable file, in the place of shapes: one line of JSON for each transaction, and for each position
//! that it was told to record.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forebay_replication::pgoutput::{Lsn, OldTuple, PgOutputMessage, RelationCache, Tuple, TupleValue};
use forebay_replication::{Batch, Bookmark, Consumer, ConsumerError, Durable, ResetReason, Timeline};
use serde::{Deserialize, Serialize};

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Line {
    Reset(String, Bookmark),
    Adopt(Timeline),
    Transaction(Transaction),
    Advance(u64),
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Transaction {
    pub(crate) xid: u32,
    pub(crate) end: u64,
    pub(crate) changes: Vec<Change>,
}

/// Columns are text; `?` is one whose value didn't change and wasn't sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    Insert(String, Vec<Option<String>>),
    Update(String, Option<Old>, Vec<Option<String>>),
    Delete(String, Old),
    Truncate(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Old {
    Key(Vec<Option<String>>),
    Full(Vec<Option<String>>),
}

/// What the file has, whole lines only.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        file.read_to_string(&mut text).unwrap();
    }
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line that was written whole")).collect()
}

/// Makes lines out of messages.
#[derive(Default)]
pub(crate) struct Recorder {
    open: Transaction,
    relations: RelationCache,
}

impl Recorder {
    pub(crate) fn take(&mut self, message: &PgOutputMessage<'_>) -> Option<Transaction> {
        match message {
            PgOutputMessage::Begin(begin) => {
                self.open = Transaction { xid: begin.xid, ..Transaction::default() }
            }
            PgOutputMessage::Relation(relation) => _ = self.relations.apply(relation),
            PgOutputMessage::Insert(insert) => {
                self.record(Change::Insert(self.name(insert.relation), row(insert.new)))
            }
            PgOutputMessage::Update(update) => {
                let name = self.name(update.relation);
                self.record(Change::Update(name, update.old.map(old), row(update.new)));
            }
            PgOutputMessage::Delete(delete) => {
                self.record(Change::Delete(self.name(delete.relation), old(delete.old)))
            }
            PgOutputMessage::Truncate(truncate) => {
                let tables = truncate.relations.iter().map(|oid| self.name(oid)).collect();
                self.record(Change::Truncate(tables));
            }
            PgOutputMessage::Commit(commit) => {
                self.open.end = commit.end_lsn.0;
                return Some(std::mem::take(&mut self.open));
            }
            _ => {}
        }
        None
    }

    fn record(&mut self, change: Change) {
        self.open.changes.push(change);
    }

    fn name(&self, oid: u32) -> String {
        let table = self.relations.get(oid).expect("a relation comes before its changes");
        format!("{}.{}", table.namespace, table.name)
    }
}

/// Writes the file.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    recorder: Recorder,
    durable: Option<Durable>,
    /// While somebody holds this, nothing is taken.
    pub(crate) gate: Arc<tokio::sync::Mutex<()>>,
    /// Panics at the next batch.
    pub(crate) panics: Arc<Mutex<u32>>,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        // A line that was being written when the process was killed is not there.
        let whole =
            std::fs::read(path).unwrap().iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).unwrap();
        Journal {
            path: path.to_owned(),
            file,
            recorder: Recorder::default(),
            durable: None,
            gate: Arc::default(),
            panics: Arc::default(),
        }
    }

    fn write(&mut self, lines: &[Line]) -> Result<(), ConsumerError> {
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line).expect("it is plain data");
            text.push('\n');
        }
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(ConsumerError::fatal)
    }
}

impl Consumer for Journal {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        let mut bookmark = None;
        for line in read(&self.path) {
            match (line, &mut bookmark) {
                (Line::Reset(_, begin), bookmark) => *bookmark = Some(begin),
                (Line::Adopt(timeline), Some(bookmark)) => bookmark.timeline = timeline,
                (Line::Transaction(Transaction { end, .. }) | Line::Advance(end), Some(bookmark)) => {
                    bookmark.durable = Lsn(end);
                }
                (line, None) => return Err(ConsumerError::fatal(format!("{line:?} before the beginning"))),
            }
        }
        Ok(bookmark)
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.write(&[Line::Reset(reason.as_str().into(), begin)])
    }

    async fn adopt(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.write(&[Line::Adopt(timeline)])
    }

    fn start(&mut self, durable: Durable) {
        self.recorder = Recorder::default();
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut Batch<'_>) -> Result<(), ConsumerError> {
        drop(self.gate.lock().await);
        {
            let mut panics = self.panics.lock().unwrap();
            if *panics > 0 {
                *panics -= 1;
                drop(panics);
                panic!("the test asked for it");
            }
        }
        let mut done = Vec::new();
        while let Some(message) = batch.next() {
            done.extend(self.recorder.take(&message).map(Line::Transaction));
        }
        if let Some(Line::Transaction(last)) = done.last() {
            let end = Lsn(last.end);
            self.write(&done)?;
            self.durable.as_ref().expect("a stream has begun").advance(end);
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.write(&[Line::Advance(lsn.0)])?;
        self.durable.as_ref().expect("a stream has begun").advance(lsn);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}

fn old(tuple: OldTuple<'_>) -> Old {
    match tuple {
        OldTuple::Key(tuple) => Old::Key(row(tuple)),
        OldTuple::Full(tuple) => Old::Full(row(tuple)),
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
