//! JSON Web Key Set file that may change at runtime.
//!
//! Invariant: a token is checked with keys whose file was read at most [`MAX_AGE`] ago. Unknown key
//! ids cause at most one read per [`UNKNOWN_KEY_INTERVAL`]. An unreadable file leaves the last
//! keys. A readable file replaces them even if it is empty, which revokes the last key.
//! Enforced by: one reload at a time, behind `reload_lock`. The file is read on a blocking thread,
//! bounded in size, and compared by content, because two writes may have the same modification
//! time.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tracing::{info, warn};

use super::keys::{KeyError, KeySet};
use crate::metrics;

/// Maximum age of the loaded keys.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Minimum interval between reloads for unknown key ids.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) struct JwksFile {
    path: PathBuf,
    loaded: RwLock<LoadedKeys>,
    /// Held while the file is read.
    reload_lock: tokio::sync::Mutex<()>,
    intervals: ReloadIntervals,
}

struct LoadedKeys {
    keys: Arc<KeySet>,
    text: Arc<[u8]>,
    checked_at: Instant,
    failed: bool,
}

/// When the file is read again: after `max_age`, and after `unknown_key` if a token names an
/// unknown key.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReloadIntervals {
    pub(super) max_age: Duration,
    pub(super) unknown_key: Duration,
}

impl JwksFile {
    pub(super) fn open(path: &Path) -> Result<Self, KeyError> {
        Self::with_intervals(path, ReloadIntervals { max_age: MAX_AGE, unknown_key: UNKNOWN_KEY_INTERVAL })
    }

    pub(super) fn with_intervals(path: &Path, intervals: ReloadIntervals) -> Result<Self, KeyError> {
        let text = read(path)?;
        let name = path.display().to_string();
        let keys = KeySet::parse(&text, &name)?.require_usable_key(&name)?;
        if keys.is_empty() {
            warn!("JWKS file contains no usable key: all tokens rejected");
        }
        let loaded =
            LoadedKeys { keys: Arc::new(keys), text: text.into(), checked_at: Instant::now(), failed: false };
        let reload_lock = tokio::sync::Mutex::new(());
        Ok(JwksFile { path: path.to_owned(), loaded: RwLock::new(loaded), reload_lock, intervals })
    }

    /// Returns the keys for a token with this key id.
    pub(super) async fn keys(&self, id: Option<&str>) -> Arc<KeySet> {
        let (keys, checked_at) = self.current();
        let unknown = id.is_some_and(|id| !keys.may_verify(id));
        let ReloadIntervals { max_age, unknown_key } = self.intervals;
        let allowed = if unknown { max_age.min(unknown_key) } else { max_age };
        if checked_at.elapsed() < allowed {
            return keys;
        }
        let _one_at_a_time = self.reload_lock.lock().await;
        if self.current().1 == checked_at {
            self.reload().await;
        }
        self.current().0
    }

    fn current(&self) -> (Arc<KeySet>, Instant) {
        let loaded = self.loaded.read();
        (loaded.keys.clone(), loaded.checked_at)
    }

    async fn reload(&self) {
        let before = self.loaded.read().text.clone();
        let path = self.path.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let text = read(&path)?;
            let same = *text == *before;
            let keys = if same { None } else { Some(KeySet::parse(&text, &path.display().to_string())?) };
            Ok::<_, KeyError>(keys.map(|keys| (keys, text)))
        });
        let Ok(outcome) = outcome.await else { return }; // the runtime is shutting down
        let mut loaded = self.loaded.write();
        loaded.checked_at = Instant::now();
        let failed = outcome.is_err();
        match outcome {
            Ok(None) => {}
            Ok(Some((keys, text))) => {
                info!(keys = keys.len(), "JWKS file reloaded");
                if keys.is_empty() {
                    warn!("JWKS file contains no usable key: all tokens rejected");
                }
                metrics::jwks_read(true);
                (loaded.keys, loaded.text) = (Arc::new(keys), text.into());
            }
            Err(error) => {
                metrics::jwks_read(false);
                if !loaded.failed {
                    warn!(%error, "JWKS reload failed: previous keys kept");
                }
            }
        }
        loaded.failed = failed;
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KeyError> {
    let name = || path.display().to_string();
    let mut text = Vec::new();
    // One byte over the limit is read to detect a larger file; the file may grow meanwhile.
    let outcome = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text));
    outcome.map_err(|source| KeyError::File { file: name(), source })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(KeyError::LargeFile { file: name(), bytes: text.len() as u64, max: MAX_FILE_BYTES });
    }
    Ok(text)
}
