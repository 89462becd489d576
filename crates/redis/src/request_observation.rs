//! Observation of one request: the caller's [`Hooks`], and with the features `tracing` and
//! `metrics` a span and metrics.

use std::sync::Arc;
use std::time::Instant;

use crate::client::ClientShared;
use crate::command_guard::EncodedArgs;
use crate::core::pipeline::ExpectedReplies;
use crate::hooks::{Hooks, RequestOutcome, RequestReport};
use crate::reply_slot::RequestResult;

/// What is observed of a request. Costs nothing without hooks and features.
///
/// All its code runs in the caller's task, without any lock.
#[derive(Default)]
pub(crate) struct RequestObservation {
    report: Option<Box<PendingReport>>,
    #[cfg(feature = "tracing")]
    span: Option<crate::request_span::RequestSpan>,
    #[cfg(feature = "metrics")]
    measured: Option<crate::metrics::MeasuredRequest>,
}

impl RequestObservation {
    /// Begins with an encoded request, whether or not it will be accepted.
    #[inline]
    pub(crate) fn begin(&mut self, shared: &ClientShared, expect: ExpectedReplies, encoded: &[u8]) {
        if let Some(hooks) = &shared.config.hooks {
            self.report = Some(Box::new(PendingReport::begin(hooks.clone(), expect, encoded)));
        }
        #[cfg(feature = "tracing")]
        {
            self.span = Some(crate::request_span::RequestSpan::begin(&shared.config, expect, encoded));
        }
        #[cfg(feature = "metrics")]
        if shared.config.measure_requests {
            self.measured = Some(crate::metrics::MeasuredRequest::begin(&shared.metrics));
        }
    }

    /// Reports the result of the request.
    #[inline]
    pub(crate) fn end(&mut self, result: &RequestResult) {
        match result {
            Ok(_) => self.report(RequestOutcome::Replied, Some(result)),
            Err(error) => self.report(RequestOutcome::Failed(error), Some(result)),
        }
    }

    /// Reports that the caller dropped a submitted request.
    pub(crate) fn end_dropped(&mut self) {
        self.report(RequestOutcome::Dropped, None);
    }

    #[inline]
    fn report(&mut self, outcome: RequestOutcome<'_>, result: Option<&RequestResult>) {
        #[cfg(feature = "metrics")]
        if let Some(measured) = self.measured.take() {
            measured.end(outcome.as_str());
        }
        #[cfg(feature = "tracing")]
        if let Some(span) = self.span.take() {
            span.end(&outcome, result.and_then(|result| result.as_ref().ok()));
        }
        #[cfg(not(feature = "tracing"))]
        let _ = result;
        if let Some(report) = self.report.take() {
            report.end(outcome);
        }
    }
}

/// Data of a [`RequestReport`], kept until the request ends.
struct PendingReport {
    hooks: Arc<dyn Hooks>,
    command: String,
    commands: usize,
    started: Instant,
}

impl PendingReport {
    fn begin(hooks: Arc<dyn Hooks>, expect: ExpectedReplies, encoded: &[u8]) -> Self {
        let commands = match expect {
            ExpectedReplies::Replies(count)
            | ExpectedReplies::Confirmations(count, _)
            | ExpectedReplies::Verified(count, _) => count as usize,
        };
        let command = String::from_utf8_lossy(first_command_name(encoded)).into_owned();
        PendingReport { hooks, command, commands, started: Instant::now() }
    }

    fn end(self, outcome: RequestOutcome<'_>) {
        let PendingReport { hooks, command, commands, started } = self;
        hooks.request(&RequestReport { command: &command, commands, took: started.elapsed(), outcome });
    }
}

/// Returns the name of the first command.
pub(crate) fn first_command_name(encoded: &[u8]) -> &[u8] {
    let arguments = memchr::memchr(b'\n', encoded).map_or(0, |end| end + 1);
    EncodedArgs(&encoded[arguments..]).next().unwrap_or_default()
}
