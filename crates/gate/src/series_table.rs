//! Series table: finds the time series of a request by the values of its metric labels.
//!
//! Invariant: a label has at most [`MAX_VALUES`] values of at most [`MAX_VALUE_BYTES`] bytes, and
//! the table has at most [`MAX_SERIES`] series, whatever clients send. The first values are kept.
//! Later values count as `other`. In a full table, new values are `other`; if that combination is
//! unknown, too, every label is.
//! Enforced by: only [`SeriesTable::add`] inserts, and it checks all three bounds.
//! Cost: [`SeriesTable::find`] doesn't allocate.
//! Out of scope: locks and metrics (`outcome_counters.rs`).

use std::collections::HashMap;

use http::HeaderValue;

use super::drain::RequestKind;
use super::metric_label::MAX_METRIC_LABELS;

/// Maximum number of values of one label, without `none` and `other`.
pub(crate) const MAX_VALUES: usize = 50;
/// Maximum length of a value. The names of language models have up to about a hundred bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 128;
/// Maximum number of series: combinations of a kind of request and a value per label.
pub(crate) const MAX_SERIES: usize = 500;

/// Value of requests without the header, or with an empty one.
const NONE_TEXT: &str = "none";
/// Value of requests whose own value exceeds a bound or isn't UTF-8.
pub(crate) const OTHER_TEXT: &str = "other";

/// A label's value in a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LabelValue<'a> {
    /// The request has no such header, or an empty one.
    #[default]
    None,
    /// The header is too long, is not UTF-8, or has a control character.
    Other,
    Text(&'a str),
}

impl<'a> LabelValue<'a> {
    /// Reads the value of a header.
    pub(crate) fn of(header: Option<&'a HeaderValue>) -> LabelValue<'a> {
        let Some(header) = header else { return LabelValue::None };
        if header.len() > MAX_VALUE_BYTES {
            return LabelValue::Other;
        }
        match std::str::from_utf8(header.as_bytes()).map(str::trim) {
            Ok("" | NONE_TEXT) => LabelValue::None,
            Ok(text) if text != OTHER_TEXT && !text.contains(char::is_control) => LabelValue::Text(text),
            Ok(_) | Err(_) => LabelValue::Other,
        }
    }
}

/// Number of a label's value.
type ValueId = u8;
const NONE: ValueId = 0;
const OTHER: ValueId = 1;
const FIRST_TEXT: ValueId = 2;

/// Values of a request, in the order of the labels. Unused places at the end are `None`.
pub(crate) type LabelValues<'a> = [LabelValue<'a>; MAX_METRIC_LABELS];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct SeriesKey {
    kind: RequestKind,
    values: [ValueId; MAX_METRIC_LABELS],
}

/// Result of [`SeriesTable::find`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SeriesLookup<T> {
    /// The request's series.
    Known(T),
    /// The bounds are reached: the request counts as `other` in every label.
    Overflow,
    /// The series must be added.
    New,
}

/// Known values and series. `T` is the handle of a series.
#[derive(Debug)]
pub(crate) struct SeriesTable<T> {
    /// The known values of each label.
    values: Vec<HashMap<Box<str>, ValueId>>,
    series: HashMap<SeriesKey, T>,
}

impl<T: Clone> SeriesTable<T> {
    /// Creates a table for this number of labels, at most [`MAX_METRIC_LABELS`].
    pub(crate) fn new(labels: usize) -> SeriesTable<T> {
        let values = (0..labels.min(MAX_METRIC_LABELS)).map(|_| HashMap::new()).collect();
        SeriesTable { values, series: HashMap::new() }
    }

    /// Finds the series of a request.
    pub(crate) fn find(&self, kind: RequestKind, values: &LabelValues<'_>) -> SeriesLookup<T> {
        let mut key = SeriesKey { kind, values: [NONE; MAX_METRIC_LABELS] };
        for ((id, known), value) in key.values.iter_mut().zip(&self.values).zip(values) {
            *id = match value_id(known, *value) {
                Some(found) => found,
                None if self.is_full() => OTHER,
                None => return SeriesLookup::New,
            };
        }
        if key.values[..self.values.len()].iter().all(|id| *id == OTHER) {
            return SeriesLookup::Overflow;
        }
        match self.series.get(&key) {
            Some(series) => SeriesLookup::Known(series.clone()),
            None if self.is_full() => SeriesLookup::Overflow,
            None => SeriesLookup::New,
        }
    }

    /// Adds the series of a request that [`find`](Self::find) doesn't know. `make` gets the value
    /// of each label. Returns `None` if the bounds are reached.
    pub(crate) fn add(
        &mut self,
        kind: RequestKind,
        values: &LabelValues<'_>,
        make: impl FnOnce(&[&str]) -> T,
    ) -> Option<T> {
        // Another request may have added the series meanwhile.
        match self.find(kind, values) {
            SeriesLookup::Known(series) => return Some(series),
            SeriesLookup::Overflow => return None,
            SeriesLookup::New => {}
        }
        let mut key = SeriesKey { kind, values: [NONE; MAX_METRIC_LABELS] };
        let mut texts = [NONE_TEXT; MAX_METRIC_LABELS];
        for (at, known) in self.values.iter_mut().enumerate() {
            let id = value_id(known, values[at]).unwrap_or_else(|| insert(known, values[at]));
            key.values[at] = id;
            texts[at] = match (id, values[at]) {
                (NONE, _) => NONE_TEXT,
                (OTHER, _) | (_, LabelValue::None | LabelValue::Other) => OTHER_TEXT,
                (_, LabelValue::Text(text)) => text,
            };
        }
        Some(self.series.entry(key).or_insert_with(|| make(&texts[..self.values.len()])).clone())
    }

    fn is_full(&self) -> bool {
        self.series.len() >= MAX_SERIES
    }
}

/// Returns the number of a value. `None`: it is new, and the label has room.
fn value_id(known: &HashMap<Box<str>, ValueId>, value: LabelValue<'_>) -> Option<ValueId> {
    match value {
        LabelValue::None => Some(NONE),
        LabelValue::Other => Some(OTHER),
        LabelValue::Text(text) => match known.get(text) {
            Some(id) => Some(*id),
            None if known.len() >= MAX_VALUES => Some(OTHER),
            None => None,
        },
    }
}

/// Adds a value of a label that has room.
fn insert(known: &mut HashMap<Box<str>, ValueId>, value: LabelValue<'_>) -> ValueId {
    let LabelValue::Text(text) = value else { return OTHER };
    let id = ValueId::try_from(known.len()).map_or(OTHER, |count| count + FIRST_TEXT);
    known.insert(text.into(), id);
    id
}

#[cfg(test)]
#[path = "series_table_tests.rs"]
mod tests;
