//! Snapshot sink: writes the rows of a snapshot to the store.

use std::io;

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_shapes::{ShapeCreation, ShapeGone, SnapshotTiming};
use tokio::task::{JoinError, spawn_blocking};

use crate::database::RowSink;

/// Writes a snapshot's rows to the store.
pub(super) struct SnapshotSink {
    /// `None` while a blocking task writes.
    creation: Option<ShapeCreation>,
}

/// Why a snapshot's rows can't be stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotSinkError {
    /// The snapshot doesn't see a commit that the stream has already delivered. A later one does.
    #[error("a commit that the stream has isn't visible yet")]
    Early,
    /// An earlier write panicked.
    #[error("its writer is gone")]
    NoWriter,
    #[error("{0}")]
    Gone(ShapeGone),
    #[error("{0}")]
    Store(#[from] io::Error),
    /// The blocking task panicked.
    #[error("{0}")]
    Write(JoinError),
}

impl SnapshotSink {
    pub(super) fn new(creation: ShapeCreation) -> Self {
        SnapshotSink { creation: Some(creation) }
    }

    /// Returns the creation after the last row. `None`: a write panicked.
    pub(super) fn into_creation(self) -> Option<ShapeCreation> {
        self.creation
    }
}

impl RowSink for SnapshotSink {
    type Error = SnapshotSinkError;

    async fn begin(&mut self, snapshot: &Snapshot, lsn: Lsn) -> Result<(), SnapshotSinkError> {
        let creation = self.creation.as_mut().ok_or(SnapshotSinkError::NoWriter)?;
        match creation.snapshot_taken(snapshot, lsn.0) {
            SnapshotTiming::InTime => Ok(()),
            SnapshotTiming::TooEarly => Err(SnapshotSinkError::Early),
        }
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), SnapshotSinkError> {
        let mut creation = self.creation.take().ok_or(SnapshotSinkError::NoWriter)?;
        if let Some(gone) = creation.shape().gone() {
            return Err(SnapshotSinkError::Gone(gone));
        }
        let (wrote, creation) = match creation.rows_block(messages.len()) {
            false => (creation.rows(messages), creation),
            true => spawn_blocking(move || (creation.rows(messages), creation))
                .await
                .map_err(SnapshotSinkError::Write)?,
        };
        self.creation = Some(creation);
        Ok(wrote?)
    }

    /// Seals a small snapshot, so that it is complete before the waiting client is woken.
    async fn end(&mut self) -> Result<(), SnapshotSinkError> {
        match &mut self.creation {
            Some(creation) if !creation.seal_blocks() => Ok(creation.seal()?),
            Some(_) | None => Ok(()),
        }
    }
}

/// Seals a snapshot unless it is sealed. A large one is synced to disk in a blocking task.
pub(super) async fn seal(mut creation: ShapeCreation) -> Result<(io::Result<()>, ShapeCreation), JoinError> {
    match creation.is_sealed() {
        true => Ok((Ok(()), creation)),
        false => spawn_blocking(move || (creation.seal(), creation)).await,
    }
}
