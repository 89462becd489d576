//! Outcome counters: every request that reaches the proxy is counted once, when it ends, by its
//! outcome.
//!
//! Invariant: each request that reaches [`GateService`](crate::GateService) increments one counter
//! of `forebay_gate_outcomes_total` by one.
//! Enforced by: an [`OutcomeGuard`] belongs to the request's future, then to its response body. It
//! counts when it is dropped. Until another outcome is set, the outcome is `cancelled`.
//! Invariant: a client adds label values only by a request that the upstream answers.
//! Enforced by: [`OutcomeCounters::guard`] only finds the series of a request whose headers have
//! values. [`OutcomeGuard::add_series`] adds it, and only the bodies from the upstream call it.
//! Cost: a request without configured labels clones one `Arc`. With labels, it also takes a read
//! lock. It allocates only if its series is unknown.

use std::sync::Arc;

use ::metrics::Counter;
use http::{HeaderMap, HeaderValue, StatusCode};
use parking_lot::RwLock;

use super::drain::RequestKind;
use super::metric_label::{MAX_METRIC_LABELS, MetricLabel};
use super::metrics;
use super::series_table::{LabelValue, LabelValues, OTHER_TEXT, SeriesLookup, SeriesTable};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateOutcome {
    /// The upstream's response below 400 was read completely, or an upgraded connection ended or
    /// was idle too long.
    Success,
    /// The request is at fault: a 4xx of the upstream, or one of the gate itself.
    ClientError,
    /// The upstream is at fault: a 5xx, no valid response, or an incomplete one.
    UpstreamError,
    /// The gate refused the request: a limit, overload, drain, or an unsupported request.
    Refused,
    /// The client left before the end. Or the gate aborted the request at the drain deadline, or
    /// because an operator ended its stream.
    Cancelled,
}

impl GateOutcome {
    /// All outcomes, in declaration order.
    const ALL: [GateOutcome; 5] = [
        GateOutcome::Success,
        GateOutcome::ClientError,
        GateOutcome::UpstreamError,
        GateOutcome::Refused,
        GateOutcome::Cancelled,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GateOutcome::Success => "success",
            GateOutcome::ClientError => "client_error",
            GateOutcome::UpstreamError => "upstream_error",
            GateOutcome::Refused => "refused",
            GateOutcome::Cancelled => "cancelled",
        }
    }

    /// Returns the outcome of a complete response of the upstream.
    pub(crate) fn of_upstream(status: StatusCode) -> GateOutcome {
        match status.as_u16() {
            ..400 => GateOutcome::Success,
            400..500 => GateOutcome::ClientError,
            500.. => GateOutcome::UpstreamError,
        }
    }

    /// Returns the outcome of a response that the gate or its admission wrote.
    pub(crate) fn of_refusal(status: StatusCode) -> GateOutcome {
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => GateOutcome::UpstreamError,
            StatusCode::TOO_MANY_REQUESTS => GateOutcome::Refused,
            status if status.is_client_error() => GateOutcome::ClientError,
            _ => GateOutcome::Refused,
        }
    }
}

/// Counters of one series, by outcome.
#[derive(Debug)]
struct OutcomeSeries([Counter; GateOutcome::ALL.len()]);

impl OutcomeSeries {
    fn new(kind: RequestKind, labels: &[MetricLabel], values: &[&str]) -> Arc<OutcomeSeries> {
        let labels = || labels.iter().map(MetricLabel::name).zip(values.iter().copied());
        Arc::new(OutcomeSeries(
            GateOutcome::ALL.map(|outcome| metrics::outcome_counter(kind, outcome, labels())),
        ))
    }
}

/// Counters of all series.
#[derive(Debug)]
pub(crate) struct OutcomeCounters {
    labels: Vec<MetricLabel>,
    /// Series of requests that take no permit, and of those that do. Every label is `other`.
    /// Without configured labels, these are all series.
    fallback: [Arc<OutcomeSeries>; 2],
    table: RwLock<SeriesTable<Arc<OutcomeSeries>>>,
}

impl OutcomeCounters {
    /// Creates the counters. `stream` is the kind of requests that take a permit.
    pub(crate) fn new(labels: Vec<MetricLabel>, stream: RequestKind) -> OutcomeCounters {
        let others = vec![OTHER_TEXT; labels.len()];
        let fallback = [RequestKind::Plain, stream].map(|kind| OutcomeSeries::new(kind, &labels, &others));
        OutcomeCounters { table: RwLock::new(SeriesTable::new(labels.len())), fallback, labels }
    }

    /// Returns the guard that counts a request. If the series of its labels is unknown, the request
    /// counts as `other` in each label until [`OutcomeGuard::add_series`].
    pub(crate) fn guard(self: &Arc<Self>, kind: RequestKind, headers: &HeaderMap) -> OutcomeGuard {
        let fallback = || Arc::clone(&self.fallback[usize::from(kind.takes_permit())]);
        let outcome = GateOutcome::Cancelled;
        if self.labels.is_empty() {
            return OutcomeGuard { series: fallback(), outcome, unknown: None };
        }
        let mut values = LabelValues::default();
        for (value, label) in values.iter_mut().zip(&self.labels) {
            *value = LabelValue::of(headers.get(label.header()));
        }
        let found = self.table.read().find(kind, &values);
        let (series, unknown) = match found {
            SeriesLookup::Known(series) => (Some(series), None),
            SeriesLookup::Overflow => (None, None),
            // Without a text, a client can't fill the table: there are few such combinations.
            SeriesLookup::New if !values.iter().any(|value| matches!(value, LabelValue::Text(_))) => {
                (self.add(kind, &values), None)
            }
            SeriesLookup::New => (None, Some(UnknownSeries::new(Arc::clone(self), kind, headers))),
        };
        OutcomeGuard { series: series.unwrap_or_else(fallback), outcome, unknown }
    }

    /// Adds a series. Returns `None` if the bounds are reached.
    fn add(&self, kind: RequestKind, values: &LabelValues<'_>) -> Option<Arc<OutcomeSeries>> {
        self.table.write().add(kind, values, |texts| OutcomeSeries::new(kind, &self.labels, texts))
    }
}

/// A series that the table doesn't have: the kind of a request and its headers with labels.
#[derive(Debug)]
struct UnknownSeries {
    counters: Arc<OutcomeCounters>,
    kind: RequestKind,
    headers: [Option<HeaderValue>; MAX_METRIC_LABELS],
}

impl UnknownSeries {
    fn new(counters: Arc<OutcomeCounters>, kind: RequestKind, headers: &HeaderMap) -> Box<UnknownSeries> {
        let mut kept = [const { None }; MAX_METRIC_LABELS];
        for (kept, label) in kept.iter_mut().zip(&counters.labels) {
            *kept = headers.get(label.header()).cloned();
        }
        Box::new(UnknownSeries { counters, kind, headers: kept })
    }

    fn add(&self) -> Option<Arc<OutcomeSeries>> {
        let values = self.headers.each_ref().map(|header| LabelValue::of(header.as_ref()));
        self.counters.add(self.kind, &values)
    }
}

/// Counts a request when it is dropped.
#[derive(Debug)]
pub(crate) struct OutcomeGuard {
    series: Arc<OutcomeSeries>,
    outcome: GateOutcome,
    /// The series of the request's labels, if the table doesn't have it.
    unknown: Option<Box<UnknownSeries>>,
}

impl OutcomeGuard {
    pub(crate) fn set(&mut self, outcome: GateOutcome) {
        self.outcome = outcome;
    }

    /// Adds the series of the request's labels if it is unknown. The upstream has answered.
    pub(crate) fn add_series(&mut self) {
        if let Some(series) = self.unknown.take().and_then(|unknown| unknown.add()) {
            self.series = series;
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.series.0[self.outcome as usize].increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_counter() {
        for (at, outcome) in GateOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at, "{outcome:?}");
        }
    }

    #[test]
    fn only_an_answered_request_adds_its_label_values() {
        let label = "model=x-model".parse().unwrap();
        let counters = Arc::new(OutcomeCounters::new(vec![label], RequestKind::Any));
        let guard = |headers: &HeaderMap| counters.guard(RequestKind::Any, headers);
        let is_other = |guard: &OutcomeGuard| Arc::ptr_eq(&guard.series, &counters.fallback[1]);
        let mut headers = HeaderMap::new();
        assert!(!is_other(&guard(&headers)), "`none` is known at once");
        headers.insert("x-model", HeaderValue::from_static("a"));
        drop(guard(&headers));
        let mut answered = guard(&headers);
        assert!(is_other(&answered));
        answered.add_series();
        assert!(!is_other(&answered));
        assert!(Arc::ptr_eq(&guard(&headers).series, &answered.series));
    }

    #[test]
    fn a_status_has_the_outcome_of_its_author() {
        let status = |code: u16| StatusCode::from_u16(code).unwrap();
        for (code, by_upstream, by_gate) in [
            (101, GateOutcome::Success, GateOutcome::Refused),
            (200, GateOutcome::Success, GateOutcome::Refused),
            (302, GateOutcome::Success, GateOutcome::Refused),
            (401, GateOutcome::ClientError, GateOutcome::ClientError),
            (429, GateOutcome::ClientError, GateOutcome::Refused),
            (500, GateOutcome::UpstreamError, GateOutcome::Refused),
            (502, GateOutcome::UpstreamError, GateOutcome::UpstreamError),
            (503, GateOutcome::UpstreamError, GateOutcome::Refused),
            (504, GateOutcome::UpstreamError, GateOutcome::UpstreamError),
            (999, GateOutcome::UpstreamError, GateOutcome::Refused),
        ] {
            assert_eq!(GateOutcome::of_upstream(status(code)), by_upstream, "{code}");
            assert_eq!(GateOutcome::of_refusal(status(code)), by_gate, "{code}");
        }
    }
}
