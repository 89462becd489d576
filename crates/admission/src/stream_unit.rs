//! What a stream holds while it is open, and its labels.

use std::sync::Arc;

use forebay_quota::{KeyedLease, Lease, QuotaRefusal, Usage};

use crate::adaptive_limiter::StreamSlot;
use crate::core::health::percent_of;
use crate::thread_id::ThreadId;
use crate::user_hash::UserHash;

/// What every stream needs to be open: a unit of the budget, and a slot if the limit is adaptive.
pub(crate) struct StreamUnit {
    /// Released first: the release of the lease wakes the queue, which needs both.
    pub(crate) slot: Option<StreamSlot>,
    pub(crate) _lease: Lease,
}

/// Why a [`StreamUnit`] is not available.
pub(crate) enum UnitRefusal {
    /// The adaptive limit is reached.
    Adaptive,
    Quota(QuotaRefusal),
}

/// What logs and lists show of a stream.
pub(crate) struct StreamLabels<'a> {
    pub(crate) thread: &'a ThreadId,
    /// The user's hash.
    pub(crate) hash: Option<UserHash>,
    pub(crate) route: Option<Arc<str>>,
}

/// Units of an admitted stream that is not registered yet.
pub(crate) struct AcquiredUnits {
    pub(crate) unit: StreamUnit,
    pub(crate) keyed: Option<KeyedLease>,
    /// Usage after the last unit was acquired.
    pub(crate) usage: Usage,
}

/// Returns whether `more` streams would exceed this share of the limit. A nonzero share is at least
/// one stream.
pub(crate) fn exceeds_share(usage: Usage, percent: u8, more: u32) -> bool {
    let least = u32::from(percent > 0);
    usage.used.saturating_add(more) > percent_of(usage.limit, percent).max(least)
}
