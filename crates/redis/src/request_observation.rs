//! Observation of one request: reports its end to [`Hooks`].

use std::sync::Arc;
use std::time::Instant;

use crate::command_guard::EncodedArgs;
use crate::config::Config;
use crate::core::pipeline::ExpectedReplies;
use crate::hooks::{Hooks, RequestOutcome, RequestReport};
use crate::reply_slot::RequestResult;

/// What is observed of a request. Costs nothing without hooks.
///
/// All its code runs in the caller's task, without any lock.
#[derive(Default)]
pub(crate) struct RequestObservation {
    report: Option<Box<PendingReport>>,
}

impl RequestObservation {
    /// Begins with an encoded request, whether or not it will be accepted.
    #[inline]
    pub(crate) fn begin(&mut self, config: &Config, expect: ExpectedReplies, encoded: &[u8]) {
        if let Some(hooks) = &config.hooks {
            self.report = Some(Box::new(PendingReport::begin(hooks.clone(), expect, encoded)));
        }
    }

    /// Reports the result of the request.
    #[inline]
    pub(crate) fn end(&mut self, result: &RequestResult) {
        if let Some(report) = self.report.take() {
            report.end(match result {
                Ok(_) => RequestOutcome::Replied,
                Err(error) => RequestOutcome::Failed(error),
            });
        }
    }

    /// Reports that the caller dropped a submitted request.
    pub(crate) fn end_dropped(&mut self) {
        if let Some(report) = self.report.take() {
            report.end(RequestOutcome::Dropped);
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
        PendingReport { hooks, command: first_command_name(encoded), commands, started: Instant::now() }
    }

    fn end(self, outcome: RequestOutcome<'_>) {
        let PendingReport { hooks, command, commands, started } = self;
        hooks.request(&RequestReport { command: &command, commands, took: started.elapsed(), outcome });
    }
}

/// Returns the name of the first command.
fn first_command_name(encoded: &[u8]) -> String {
    let arguments = memchr::memchr(b'\n', encoded).map_or(0, |end| end + 1);
    let name = EncodedArgs(&encoded[arguments..]).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
