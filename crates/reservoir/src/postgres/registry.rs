//! Registry of shared reservoirs: one per database in this process.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::{PostgresClient, PostgresConnect};
use crate::config::{ConnectionLimits, ReservoirConfig, ReservoirConfigError};
use crate::reservoir::{Reservoir, WeakReservoir};

static RESERVOIRS: LazyLock<Mutex<HashMap<String, WeakReservoir<PostgresClient>>>> =
    LazyLock::new(Mutex::default);

impl Reservoir<PostgresClient> {
    /// Returns the reservoir of this process for this server, user and database.
    ///
    /// The first caller starts it with its configuration; others share it and should take a
    /// [`view`](Self::view). It closes with the last handle. Different connection settings, such as
    /// another `sslmode`, give another reservoir.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn shared(
        connect: PostgresConnect,
        config: ReservoirConfig,
        limits: ConnectionLimits,
    ) -> Result<Self, ReservoirConfigError> {
        let key = connect.identity();
        let mut reservoirs = RESERVOIRS.lock();
        reservoirs.retain(|_, reservoir| reservoir.upgrade().is_some());
        if let Some(reservoir) = reservoirs.get(&key).and_then(WeakReservoir::upgrade) {
            return Ok(reservoir);
        }
        let reservoir = Reservoir::start(connect, config, limits)?;
        reservoirs.insert(key, reservoir.downgrade());
        Ok(reservoir)
    }
}
