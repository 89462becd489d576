//! Start clock: reports to admission how the start of a stream counts for the adaptive limit.
//!
//! The time of a slow upload is the client's: only the time after it is the upstream's.

use std::sync::Arc;
use std::time::Duration;

use forebay_admission::{StartReport, StreamStart};
use http::Response;
use tokio::time::Instant;

use super::upload::UploadProgress;
use super::upstream_error::UpstreamError;

/// Clock of one request.
#[derive(Debug)]
pub(crate) struct StartClock {
    report: StartReport,
    started_at: Instant,
    /// Progress of the request's body. `None` without a body.
    pub(crate) progress: Option<Arc<UploadProgress>>,
}

impl StartClock {
    pub(crate) fn new(report: StartReport, started_at: Instant) -> StartClock {
        StartClock { report, started_at, progress: None }
    }

    /// Reports the upstream's response, or its failure. A response says nothing if the upload isn't
    /// complete.
    pub(crate) fn finish<B>(&self, result: &Result<Response<B>, UpstreamError>) {
        self.report.set(match (result, self.upstreams_time()) {
            (Ok(response), Some(took)) => StreamStart::of(response.status(), took),
            (Err(error), _) if error.is_upstreams_fault() => StreamStart::Failed,
            (Ok(_), None) | (Err(_), _) => StreamStart::Ignored,
        });
    }

    /// Reports that the client left before the response head.
    pub(crate) fn abandon(&self) {
        self.report.set(self.upstreams_time().map_or(StreamStart::Ignored, StreamStart::Abandoned));
    }

    /// Reports that the upstream didn't get the request.
    pub(crate) fn ignore(&self) {
        self.report.set(StreamStart::Ignored);
    }

    /// Returns the time since the upstream has the whole request. `None` before.
    fn upstreams_time(&self) -> Option<Duration> {
        let sent_at = match &self.progress {
            None => self.started_at,
            Some(progress) if progress.is_done() => progress.last_at().max(self.started_at),
            Some(_) => return None,
        };
        Some(sent_at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const UPLOAD: Duration = Duration::from_millis(200);

    /// Returns what is reported of a request whose client leaves after an upload of [`UPLOAD`].
    fn abandoned(progress: Option<Arc<UploadProgress>>, is_sent: bool) -> Option<StreamStart> {
        let report = StartReport::default();
        let clock = StartClock { progress, ..StartClock::new(report.clone(), Instant::now()) };
        sleep(UPLOAD);
        if let Some(progress) = &clock.progress {
            progress.record(is_sent);
        }
        clock.abandon();
        report.get()
    }

    #[test]
    fn the_upload_of_a_client_that_leaves_is_not_the_upstreams_time() {
        let upload = || Some(Arc::new(UploadProgress::new(false)));
        assert_eq!(abandoned(upload(), false), Some(StreamStart::Ignored));
        let Some(StreamStart::Abandoned(waited)) = abandoned(upload(), true) else { panic!("sent") };
        assert!(waited < UPLOAD, "{waited:?}");
        let Some(StreamStart::Abandoned(waited)) = abandoned(None, false) else { panic!("no body") };
        assert!(waited >= UPLOAD, "{waited:?}");
    }
}
