//! Connectors of the two pools: metadata connections are opened before those for snapshots.
//!
//! Invariant: no snapshot connection is dialed while the metadata pool lacks one that it could
//! dial, or while a full server refuses its dials.
//! Enforced by: [`SnapshotConnect`] checks this before it requests credentials, and again before it
//! dials.
//!
//! The end of a metadata connection isn't seen at once, so a snapshot dial may still take its place
//! on a full server. Then the next metadata dial is refused. [`MetadataDials`] reports that, and
//! the pools close a snapshot connection.

use forebay_reservoir::{
    Connect, ConnectionCounts, ConnectionError, ConnectionErrorKind, DialSlot, PostgresClient,
    PostgresConnect, Reservoir,
};
use tokio::sync::watch;

type PostgresCredentials = <PostgresConnect as Connect>::Credentials;

/// Results of the metadata dials: whether a full server refused the last one. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct MetadataDials(watch::Sender<bool>);

impl MetadataDials {
    pub(super) fn new() -> Self {
        MetadataDials(watch::Sender::new(false))
    }

    /// Returns a receiver that is notified of each finished dial.
    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// Connector of the metadata pool.
pub(super) struct MetadataConnect {
    pub(super) connect: PostgresConnect,
    pub(super) dials: MetadataDials,
}

impl Connect for MetadataConnect {
    type Connection = PostgresClient;
    type Credentials = PostgresCredentials;

    fn endpoint(&self) -> String {
        self.connect.endpoint()
    }

    async fn credentials(&self) -> Result<PostgresCredentials, ConnectionError> {
        Connect::credentials(&self.connect).await
    }

    async fn connect(&self, credentials: PostgresCredentials) -> Result<PostgresClient, ConnectionError> {
        Connect::connect(&self.connect, credentials).await
    }

    async fn connect_in_slot(
        &self,
        credentials: PostgresCredentials,
        slot: DialSlot,
    ) -> Result<PostgresClient, ConnectionError> {
        let opened = self.connect.connect_in_slot(credentials, slot).await;
        let is_refused = opened.as_ref().is_err_and(|error| error.kind() == ConnectionErrorKind::Full);
        self.dials.0.send_replace(is_refused);
        opened
    }
}

/// Connector of the snapshot pool.
pub(super) struct SnapshotConnect {
    pub(super) connect: PostgresConnect,
    pub(super) metadata: Reservoir<PostgresClient>,
    pub(super) dials: MetadataDials,
}

impl SnapshotConnect {
    /// Fails if the metadata pool needs the next free place on the server.
    fn check_metadata(&self) -> Result<(), ConnectionError> {
        let status = self.metadata.status();
        let ConnectionCounts { ready, lent, resetting, retiring, .. } = status.counts;
        let open = ready + lent + resetting;
        // Without a free slot the pool can't dial, so it waits for its own connections to close.
        let can_dial = open + retiring < status.max;
        if !*self.dials.0.borrow() && (open >= status.target || !can_dial) {
            return Ok(());
        }
        let why = status.last_failure.unwrap_or_else(|| "the next one is being opened".to_owned());
        let text =
            format!("metadata connections are opened first, {open} of {} are open: {why}", status.target);
        Err(ConnectionError::new(ConnectionErrorKind::Other, text))
    }
}

impl Connect for SnapshotConnect {
    type Connection = PostgresClient;
    type Credentials = PostgresCredentials;

    fn endpoint(&self) -> String {
        self.connect.endpoint()
    }

    async fn credentials(&self) -> Result<PostgresCredentials, ConnectionError> {
        // Not a wait: the dial holds a lease of the budget, which metadata may need.
        self.check_metadata()?;
        Connect::credentials(&self.connect).await
    }

    async fn connect(&self, credentials: PostgresCredentials) -> Result<PostgresClient, ConnectionError> {
        self.check_metadata()?;
        Connect::connect(&self.connect, credentials).await
    }

    async fn connect_in_slot(
        &self,
        credentials: PostgresCredentials,
        slot: DialSlot,
    ) -> Result<PostgresClient, ConnectionError> {
        self.check_metadata()?;
        self.connect.connect_in_slot(credentials, slot).await
    }
}
