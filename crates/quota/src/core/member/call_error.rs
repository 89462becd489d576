//! `CallError`: why a call of a member gave no usable reply.

use crate::store::StoreError;

/// Why a call to the store failed. Each of them is an outage to the member.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call was dropped without a result.
    #[error("the call was dropped before its answer came; has its runtime ended?")]
    Dropped,
    #[error("the store gave {replies} answers to {requests} asks")]
    WrongCount { replies: usize, requests: usize },
    /// A member that had just joined was unknown to the store.
    #[error("the store let this member in and forgot it at once")]
    Forgotten,
}
