//! One reservoir for each database that this process talks to, however many of its parts want connections.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::{PostgresClient, PostgresConnect};
use crate::config::{ConfigError, Limits, ReservoirConfig};
use crate::reservoir::{Reservoir, WeakReservoir};

static RESERVOIRS: LazyLock<Mutex<HashMap<String, WeakReservoir<PostgresClient>>>> =
    LazyLock::new(Mutex::default);

impl Reservoir<PostgresClient> {
    /// The reservoir of this process for this server, user and database: started by the first who asks, with what they
    /// configured, and shared by all others, who should take a [`view`](Self::view) of it. It closes with the last handle. Whoever
    /// asks for other connections (another `sslmode`, say) has another reservoir.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn shared(
        connect: PostgresConnect,
        config: ReservoirConfig,
        limits: Limits,
    ) -> Result<Self, ConfigError> {
        let key = connect.identity();
        let mut reservoirs = RESERVOIRS.lock().unwrap_or_else(PoisonError::into_inner);
        reservoirs.retain(|_, reservoir| reservoir.upgrade().is_some());
        if let Some(reservoir) = reservoirs.get(&key).and_then(WeakReservoir::upgrade) {
            return Ok(reservoir);
        }
        let reservoir = Reservoir::start(connect, config, limits)?;
        reservoirs.insert(key, reservoir.downgrade());
        Ok(reservoir)
    }
}
