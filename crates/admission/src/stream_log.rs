//! Log lines about streams: stage codes and the rate limit of rejections.
//!
//! Invariant: every line about a stream has the fields `stage`, `thread_id` and `user`; `user` is a
//! hash, never the id.
//! Enforced by: all lines are written by the macros [`log_stream`] and [`log_stage`], which take a
//! [`UserHash`].
//! Bound: at most [`LINES_PER_SECOND`] rejections are logged per second. Stage lines have no bound;
//! by default, their level is debug.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::user_hash::UserHash;

/// Codes of the stages of a stream. `CP` means connection pool.
pub(crate) mod code {
    /// The admission was built.
    pub(crate) const BUILT: &str = "CP.0";
    /// A client requests a stream.
    pub(crate) const REQUESTED: &str = "CP.1";
    /// Usage after the units were acquired or refused.
    pub(crate) const COUNTED: &str = "CP.1.1";
    /// Rejected by the server side: the total limit, this process or the store.
    pub(crate) const EXHAUSTED: &str = "CP.1.2";
    /// Rejected by the user's limit.
    pub(crate) const USER_LIMIT: &str = "CP.1.3";
    /// The stream is admitted.
    pub(crate) const ADMITTED: &str = "CP.1.4";
    /// An operator ended the stream.
    pub(crate) const ENDED: &str = "CP.3";
    /// The stream ended.
    pub(crate) const RELEASING: &str = "CP.4";
    /// Its permit is released.
    pub(crate) const RELEASED: &str = "CP.4.1";
    /// The health state, the limits or load shedding changed.
    pub(crate) const HEALTH: &str = "CP.5";
}

const LINES_PER_SECOND: u64 = 10;

/// Level of the stage lines: those that every stream has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageLevel {
    /// Several lines for each stream, for debugging.
    #[default]
    Debug,
    /// The same lines at info.
    Info,
}

/// Current [`StageLevel`]. It can change while streams are open.
#[derive(Debug)]
pub(crate) struct StageLevelCell(AtomicBool);

impl StageLevelCell {
    pub(crate) fn new(level: StageLevel) -> Self {
        StageLevelCell(AtomicBool::new(level == StageLevel::Info))
    }

    pub(crate) fn set(&self, level: StageLevel) {
        self.0.store(level == StageLevel::Info, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> StageLevel {
        if self.0.load(Ordering::Relaxed) { StageLevel::Info } else { StageLevel::Debug }
    }
}

/// The field `user`: a hash, or `-` for anonymous clients.
pub(crate) struct UserField(pub(crate) Option<UserHash>);

impl fmt::Display for UserField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(hash) => hash.fmt(f),
            None => f.write_str("-"),
        }
    }
}

/// Allows a few lines per second, and counts the withheld ones.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimiter {
    second: AtomicU64,
    written: AtomicU64,
    withheld: AtomicU64,
}

impl LogRateLimiter {
    /// Returns the number of lines withheld since the last allowed one, or `None` if this line is
    /// withheld. `now` is the time since any fixed moment.
    pub(crate) fn allow(&self, now: Duration) -> Option<u64> {
        // A race between two threads allows one line more, nothing worse.
        let second = now.as_secs() + 1;
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.written.store(0, Ordering::Relaxed);
        }
        if self.written.fetch_add(1, Ordering::Relaxed) < LINES_PER_SECOND {
            return Some(self.withheld.swap(0, Ordering::Relaxed));
        }
        self.withheld.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Logs one line about a stream at a level.
macro_rules! log_stream {
    ($level:ident, $stage:expr, $thread:expr, $user:expr, $($rest:tt)+) => {
        tracing::$level!(
            stage = $stage,
            thread_id = %$thread,
            user = %$crate::stream_log::UserField($user),
            $($rest)+
        )
    };
}
pub(crate) use log_stream;

/// Logs one stage of a stream, at the level of a [`StageLevelCell`].
macro_rules! log_stage {
    ($level:expr, $($line:tt)+) => {
        match $level.get() {
            $crate::stream_log::StageLevel::Debug => $crate::stream_log::log_stream!(debug, $($line)+),
            $crate::stream_log::StageLevel::Info => $crate::stream_log::log_stream!(info, $($line)+),
        }
    };
}
pub(crate) use log_stage;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_per_second_are_allowed_and_the_rest_is_counted() {
        let limiter = LogRateLimiter::default();
        let passed = |now| (0..100).filter_map(|_| limiter.allow(now)).collect::<Vec<_>>();
        assert_eq!(passed(Duration::from_millis(10)), [0; 10]);
        assert_eq!(passed(Duration::from_millis(990)), [0; 0]);
        let next = passed(Duration::from_millis(1_000));
        assert_eq!((next.len(), next[0], next[1]), (10, 190, 0));
    }
}
