//! Builtins cache: the functions, operators and types that clauses may use, read once per major
//! version of the server.

use std::sync::Arc;
use std::time::Duration;

use forebay_replication::Manager;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::refusals::{describe_refusal, manager_refusal, pool_refusal};
use crate::database::Builtins;
use crate::protocol::RequestRefusal;

/// Maximum duration of a load, including the wait for one that is in progress.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Caches the builtins of the last server version.
#[derive(Debug)]
pub(crate) struct BuiltinsCache {
    manager: Manager,
    /// Locked while the builtins are read, so that requests share one query.
    cached: Mutex<Option<(u32, Arc<Builtins>)>>,
}

impl BuiltinsCache {
    pub(crate) fn new(manager: Manager) -> Self {
        BuiltinsCache { manager, cached: Mutex::default() }
    }

    /// Returns the builtins of a major version of the server.
    pub(crate) async fn get(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let loading = timeout(LOAD_TIMEOUT, self.load(server_version));
        loading.await.unwrap_or(Err(RequestRefusal::DatabaseUnreachable))
    }

    async fn load(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let mut cached = self.cached.lock().await;
        if let Some((_, builtins)) = cached.as_ref().filter(|(version, _)| *version == server_version) {
            return Ok(Arc::clone(builtins));
        }
        let _awake = self.manager.wake().await.map_err(|error| manager_refusal(&error))?;
        let client = self.manager.admin().await.map_err(|error| pool_refusal(&error))?;
        let loaded = Builtins::load(&client).await.map_err(|error| describe_refusal(&error.into()))?;
        let builtins = Arc::new(loaded);
        *cached = Some((server_version, Arc::clone(&builtins)));
        Ok(builtins)
    }
}
