//! Counts and log lines of rejected streams.

use std::sync::atomic::Ordering;

use crate::controller::AdmissionController;
use crate::rejection::{Rejection, RejectionReason};
use crate::stream_log::{code, log_stage, log_stream};
use crate::thread_id::ThreadId;
use crate::user_hash::UserHash;

impl AdmissionController {
    /// Counts and logs a rejection.
    pub(crate) fn record_rejection(&self, rejection: &Rejection, thread: &ThreadId, hash: Option<UserHash>) {
        let reason = rejection.reason;
        // For `Retry-After`: only these requests will be retried and compete for released units.
        if reason.is_server_side() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.metrics.rejected(reason);
        if reason == RejectionReason::Exhausted
            && let Some((used, limit)) = rejection.count
        {
            self.health.observe(used, limit, &self.metrics);
        }
        self.log_refused_counts(rejection, thread, hash);
        let Some(withheld) = self.rejection_log_limit.allow(self.started_at.elapsed()) else { return };
        let (why, stage) =
            (reason.as_str(), if reason.is_server_side() { code::EXHAUSTED } else { code::USER_LIMIT });
        let (current, max) = rejection.count.unwrap_or_default();
        match reason {
            RejectionReason::Credentials | RejectionReason::BadRequest | RejectionReason::TooLong => {
                let why = rejection.fault.as_ref().map_or(why, |fault| fault.as_str());
                log_stream!(
                    warn,
                    code::REQUESTED,
                    thread,
                    hash,
                    reason = why,
                    withheld,
                    "stream rejected: client not identified"
                );
            }
            _ => log_stream!(
                warn,
                stage,
                thread,
                hash,
                reason = why,
                current,
                max,
                withheld,
                "stream rejected"
            ),
        }
    }

    /// Logs the usage at a rejection. A client that wasn't identified has none.
    fn log_refused_counts(&self, rejection: &Rejection, thread: &ThreadId, hash: Option<UserHash>) {
        let level = &self.stage_level;
        match (rejection.reason, rejection.count) {
            (_, None) => {}
            (RejectionReason::UserLimit, Some((user_used, user_limit))) => {
                let usage = || self.budget.usage(); // read only if the line is written
                log_stage!(
                    level,
                    code::COUNTED,
                    thread,
                    hash,
                    used = usage().used,
                    limit = usage().limit,
                    user_used,
                    user_limit,
                    "stream counted"
                );
            }
            // Of this process, not of the cluster.
            (RejectionReason::Adaptive, Some((instance_used, instance_limit))) => {
                log_stage!(
                    level,
                    code::COUNTED,
                    thread,
                    hash,
                    instance_used,
                    instance_limit,
                    "stream counted"
                );
            }
            (_, Some((used, limit))) => {
                log_stage!(level, code::COUNTED, thread, hash, used, limit, "stream counted");
            }
        }
    }
}
