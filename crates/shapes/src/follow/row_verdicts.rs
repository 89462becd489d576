//! Row verdicts: the rows of one shape that Postgres must judge, and what it has answered.
//!
//! A verdict depends only on the values of the columns that the clause uses. So each distinct list
//! of values is asked once, and recent answers are kept. Values are compared byte by byte; a hash
//! alone never decides.
//!
//! At most one batch of a shape is being judged, so that shapes can take turns.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::row_effect::DecodedRow;

/// Maximum number of rows in a batch.
const MAX_BATCH_ROWS: usize = 1000;

/// Maximum size of a batch, in bytes. A larger row is a batch of its own.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// Maximum size of each of the two generations of answers of a shape, in bytes.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// Maximum size of the answers of all shapes, in bytes.
const MAX_ANSWER_BYTES_TOTAL: usize = 64 << 20;

/// Size of an answer without its values, in bytes: its place in a hash table, and its counts.
const ANSWER_OVERHEAD: usize = 64;

/// Size of the answers of all shapes in this process, in bytes.
static ANSWER_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Number of verdicts that this process found among its answers.
static CACHED_VERDICTS: AtomicU64 = AtomicU64::new(0);

/// Values of a row in one allocation. Never formatted.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PackedRow(Arc<[u8]>);

/// Row that Postgres must judge, shared by all changes with these values.
#[derive(Debug)]
pub(crate) struct RowQuestion {
    /// Values of the columns that the clause uses.
    pub(crate) values: PackedRow,
    /// Whether the row is in the shape, once it is known.
    answer: OnceLock<bool>,
}

/// Whether a row is in a shape.
#[derive(Debug, Clone)]
pub(super) enum HeldVerdict {
    Known(bool),
    Asked(Arc<RowQuestion>),
}

/// Open questions and recent answers of a shape.
#[derive(Debug, Default)]
pub(super) struct RowVerdicts {
    /// Questions without an answer.
    open: HashMap<PackedRow, Arc<RowQuestion>>,
    /// Open questions that are in no batch.
    waiting: VecDeque<Arc<RowQuestion>>,
    /// Whether the shape is in the list of shapes with waiting questions.
    is_listed: bool,
    /// Whether a batch is being judged.
    is_judging: bool,
    /// Answers since the last change of generations, then those of the generation before.
    recent: AnswerGeneration,
    former: AnswerGeneration,
}

#[derive(Debug, Default)]
struct AnswerGeneration {
    answers: HashMap<PackedRow, bool>,
    bytes: usize,
}

impl PackedRow {
    /// Packs values. The length before each value distinguishes any two lists.
    pub(super) fn new<'a>(values: impl Iterator<Item = Option<&'a [u8]>>) -> Self {
        let mut packed = Vec::new();
        for value in values {
            let length = value.map_or(0, |value| value.len() as u64 + 1);
            packed.extend_from_slice(&length.to_le_bytes());
            packed.extend_from_slice(value.unwrap_or_default());
        }
        PackedRow(packed.into())
    }

    /// Returns the values.
    pub(crate) fn values(&self) -> DecodedRow<'_> {
        let (mut rest, mut values) = (&self.0[..], Vec::new());
        while let Some((length, after)) = rest.split_first_chunk() {
            let length = u64::from_le_bytes(*length);
            let (value, after) = after.split_at(length.saturating_sub(1) as usize);
            values.push((length > 0).then_some(value));
            rest = after;
        }
        values
    }

    /// Returns the size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for PackedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedRow({} bytes)", self.0.len())
    }
}

impl HeldVerdict {
    /// Returns whether the row is in the shape. `None`: Postgres hasn't answered.
    pub(super) fn get(&self) -> Option<bool> {
        match self {
            HeldVerdict::Known(verdict) => Some(*verdict),
            HeldVerdict::Asked(question) => question.answer.get().copied(),
        }
    }
}

impl RowVerdicts {
    /// Returns the verdict on a row with these values. Asks Postgres if it isn't known.
    pub(super) fn find_or_ask(&mut self, values: PackedRow) -> HeldVerdict {
        if let Some(answer) = self.find(&values) {
            CACHED_VERDICTS.fetch_add(1, Ordering::Relaxed);
            return HeldVerdict::Known(answer);
        }
        let question = self.open.entry(values).or_insert_with_key(|values| {
            let question = Arc::new(RowQuestion { values: values.clone(), answer: OnceLock::new() });
            self.waiting.push_back(Arc::clone(&question));
            question
        });
        HeldVerdict::Asked(Arc::clone(question))
    }

    /// Returns the answer for a row with these values, if it is kept.
    fn find(&mut self, values: &PackedRow) -> Option<bool> {
        if let Some(answer) = self.recent.answers.get(values) {
            return Some(*answer);
        }
        let answer = self.former.answers.get(values).copied()?;
        self.remember(values.clone(), answer);
        Some(answer)
    }

    /// Stores the answer to a question.
    pub(super) fn answer(&mut self, question: &RowQuestion, answer: bool) {
        // An answer never changes: the second of two is dropped.
        let _first = question.answer.set(answer);
        self.open.remove(&question.values);
        self.remember(question.values.clone(), answer);
    }

    /// Ends the batch that is being judged. Adds its questions without an answer to those that
    /// wait.
    pub(super) fn end_batch(&mut self, questions: impl DoubleEndedIterator<Item = Arc<RowQuestion>>) {
        self.is_judging = false;
        for question in questions.rev() {
            if self.open.get(&question.values).is_some_and(|open| Arc::ptr_eq(open, &question)) {
                self.waiting.push_front(question);
            }
        }
    }

    /// Marks the shape as listed if questions wait for a batch and no batch is being judged.
    /// Returns whether the caller must add it to the list.
    pub(super) fn list(&mut self) -> bool {
        !self.waiting.is_empty() && !self.is_judging && !mem::replace(&mut self.is_listed, true)
    }

    /// Removes the next batch from the questions that wait, and the shape from the list.
    pub(super) fn take_batch(&mut self) -> Vec<Arc<RowQuestion>> {
        self.is_listed = false;
        let (mut bytes, mut count) = (0, 0);
        for question in self.waiting.iter().take(MAX_BATCH_ROWS) {
            bytes += question.values.bytes();
            if count > 0 && bytes > MAX_BATCH_BYTES {
                break;
            }
            count += 1;
        }
        self.is_judging = count > 0;
        self.waiting.drain(..count).collect()
    }

    /// Drops the questions that no held change refers to.
    pub(super) fn drop_unused(&mut self) {
        self.waiting.clear();
        self.open.retain(|_, question| Arc::strong_count(question) > 1);
        self.waiting.extend(self.open.values().map(Arc::clone));
    }

    fn remember(&mut self, values: PackedRow, answer: bool) {
        let is_full = self.recent.bytes + self.recent.size_of(&values) > MAX_ANSWER_BYTES;
        if is_full || ANSWER_BYTES.load(Ordering::Relaxed) > MAX_ANSWER_BYTES_TOTAL {
            self.former = mem::take(&mut self.recent);
        }
        self.recent.add(values, answer);
    }
}

/// Returns the number of verdicts that this process found among its answers.
pub(crate) fn cached_verdicts() -> u64 {
    CACHED_VERDICTS.load(Ordering::Relaxed)
}

impl AnswerGeneration {
    fn size_of(&self, values: &PackedRow) -> usize {
        values.bytes() + ANSWER_OVERHEAD
    }

    fn add(&mut self, values: PackedRow, answer: bool) {
        let size = self.size_of(&values);
        if size <= MAX_ANSWER_BYTES && self.answers.insert(values, answer).is_none() {
            self.bytes += size;
            ANSWER_BYTES.fetch_add(size, Ordering::Relaxed);
        }
    }
}

impl Drop for AnswerGeneration {
    fn drop(&mut self) {
        ANSWER_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(values: &[Option<&str>]) -> PackedRow {
        PackedRow::new(values.iter().map(|value| value.map(str::as_bytes)))
    }

    fn ask(verdicts: &mut RowVerdicts, value: &str) -> HeldVerdict {
        verdicts.find_or_ask(packed(&[Some(value)]))
    }

    #[test]
    fn different_values_are_never_packed_alike() {
        let lists: [&[Option<&str>]; 7] =
            [&[], &[None], &[Some("")], &[Some("a"), None], &[None, Some("a")], &[Some("a")], &[None, None]];
        for (index, list) in lists.iter().enumerate() {
            let unpacked: Vec<_> = list.iter().map(|value| value.map(str::as_bytes)).collect();
            assert_eq!(packed(list).values(), unpacked);
            assert!(lists[..index].iter().all(|other| packed(other) != packed(list)), "{list:?}");
        }
    }

    #[test]
    fn each_distinct_row_is_asked_once_and_the_answer_is_kept() {
        let mut verdicts = RowVerdicts::default();
        let held = [ask(&mut verdicts, "a"), ask(&mut verdicts, "b"), ask(&mut verdicts, "a")];
        let batch = verdicts.take_batch();
        assert_eq!((batch.len(), verdicts.waiting.len()), (2, 0));
        assert!(held.iter().all(|verdict| verdict.get().is_none()));
        verdicts.answer(&batch[0], true);
        assert_eq!(held.map(|verdict| verdict.get()), [Some(true), None, Some(true)]);
        assert!(matches!(ask(&mut verdicts, "a"), HeldVerdict::Known(true)));
        // While it is in a batch, a row isn't asked again.
        assert!(ask(&mut verdicts, "b").get().is_none() && verdicts.waiting.is_empty());
        verdicts.end_batch(batch.into_iter());
        assert_eq!(verdicts.take_batch().len(), 1, "the answered row isn't asked again");
    }

    #[test]
    fn a_shape_is_listed_again_when_its_batch_has_ended() {
        let mut verdicts = RowVerdicts::default();
        assert!(!verdicts.list());
        let _first = ask(&mut verdicts, "a");
        assert_eq!([verdicts.list(), verdicts.list()], [true, false]);
        let batch = verdicts.take_batch();
        let _second = ask(&mut verdicts, "b");
        assert!(!verdicts.list(), "a batch is being judged");
        batch.iter().for_each(|question| verdicts.answer(question, true));
        verdicts.end_batch(std::iter::empty());
        assert!(verdicts.list());
    }

    #[test]
    fn batches_and_answers_are_bounded() {
        let mut verdicts = RowVerdicts::default();
        let large = "x".repeat(MAX_BATCH_BYTES);
        for value in ["a", &large, "b"] {
            let _asked = ask(&mut verdicts, value);
        }
        let sizes = [(); 3].map(|()| verdicts.take_batch().len());
        assert_eq!(sizes, [1, 1, 1]);
        let answers: Vec<_> = (0..MAX_BATCH_ROWS + 1).map(|id| ask(&mut verdicts, &id.to_string())).collect();
        let (first, second) = (verdicts.take_batch(), verdicts.take_batch());
        assert_eq!((first.len(), second.len()), (MAX_BATCH_ROWS, 1));
        for question in first.iter().chain(&second) {
            verdicts.answer(question, false);
        }
        assert!(answers.iter().all(|verdict| verdict.get() == Some(false)));
        for id in 0..40_000 {
            let _asked = ask(&mut verdicts, &format!("more {id}"));
        }
        while !verdicts.waiting.is_empty() {
            verdicts.take_batch().iter().for_each(|question| verdicts.answer(question, true));
        }
        assert!(verdicts.recent.bytes + verdicts.former.bytes <= 2 * MAX_ANSWER_BYTES);
        assert!(ask(&mut verdicts, "1").get().is_none(), "the oldest answers were dropped");
        assert!(matches!(ask(&mut verdicts, "more 39999"), HeldVerdict::Known(true)));
    }
}
