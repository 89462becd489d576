//! A file of keys that may change while we run.
//!
//! Invariant: no token is checked with a set that is older than [`FRESH`] and one look at the file; tokens with an unknown key
//! id make us look at most once in [`PATIENCE`], however many come. A file that can't be read leaves the last good set; one that can be is
//! believed, also if there is no key left in it: so the last one is revoked.
//! Kept by: one look at a time, behind a lock that everybody who needs the news waits for; the file is read on a blocking
//! thread, bounded in size, and compared as a whole: two writes within one tick of the file system's clock are two.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::keys::{KeyError, KeySet};
use crate::metrics;

/// How long a look at the file is good for.
const FRESH: Duration = Duration::from_secs(5);
/// How long after a look an unknown key id has us look again.
const PATIENCE: Duration = Duration::from_secs(1);
const MAX_FILE_BYTES: u64 = 1 << 20;

pub(super) struct JwksFile {
    path: PathBuf,
    now: RwLock<Known>,
    /// Held by whoever looks at the file.
    looking: tokio::sync::Mutex<()>,
    times: Times,
}

struct Known {
    keys: Arc<KeySet>,
    text: Arc<[u8]>,
    looked: Instant,
    failed: bool,
}

/// How long a look at the file is good for: in general, and when a key is asked for that isn't in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) fresh: Duration,
    pub(super) patience: Duration,
}

impl JwksFile {
    pub(super) fn open(path: &Path) -> Result<Self, KeyError> {
        Self::with_times(path, Times { fresh: FRESH, patience: PATIENCE })
    }

    pub(super) fn with_times(path: &Path, times: Times) -> Result<Self, KeyError> {
        let text = read(path)?;
        let name = path.display().to_string();
        let keys = KeySet::parse(&text, &name)?.fit_to_begin_with(&name)?;
        if keys.is_empty() {
            warn!("there is no key in the file of keys: every token is refused");
        }
        let known = Known { keys: Arc::new(keys), text: text.into(), looked: Instant::now(), failed: false };
        let looking = tokio::sync::Mutex::new(());
        Ok(JwksFile { path: path.to_owned(), now: RwLock::new(known), looking, times })
    }

    /// The keys for a token that names this key, or none.
    pub(super) async fn keys(&self, id: Option<&str>) -> Arc<KeySet> {
        let (keys, looked) = self.known();
        let unknown = id.is_some_and(|id| !keys.knows(id));
        let Times { fresh, patience } = self.times;
        let allowed = if unknown { fresh.min(patience) } else { fresh };
        if looked.elapsed() < allowed {
            return keys;
        }
        let _one_at_a_time = self.looking.lock().await;
        if self.known().1 == looked {
            self.look().await;
        }
        self.known().0
    }

    fn known(&self) -> (Arc<KeySet>, Instant) {
        let known = self.now.read().unwrap_or_else(PoisonError::into_inner);
        (known.keys.clone(), known.looked)
    }

    async fn look(&self) {
        let before = self.now.read().unwrap_or_else(PoisonError::into_inner).text.clone();
        let path = self.path.clone();
        let news = tokio::task::spawn_blocking(move || {
            let text = read(&path)?;
            let same = *text == *before;
            let keys = if same { None } else { Some(KeySet::parse(&text, &path.display().to_string())?) };
            Ok::<_, KeyError>(keys.map(|keys| (keys, text)))
        });
        let Ok(news) = news.await else { return }; // the runtime ends
        let mut known = self.now.write().unwrap_or_else(PoisonError::into_inner);
        known.looked = Instant::now();
        let failed = news.is_err();
        match news {
            Ok(None) => {}
            Ok(Some((keys, text))) => {
                info!(keys = keys.len(), "the file of keys changed and was read again");
                if keys.is_empty() {
                    warn!("no key is left in the file of keys: every token is refused");
                }
                metrics::jwks_read(true);
                (known.keys, known.text) = (Arc::new(keys), text.into());
            }
            Err(error) => {
                metrics::jwks_read(false);
                if !known.failed {
                    warn!(%error, "the file of keys can't be read; the last good keys stay");
                }
            }
        }
        known.failed = failed;
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KeyError> {
    let name = || path.display().to_string();
    let mut text = Vec::new();
    // One byte more than allowed is enough to know; the file may grow while we read.
    let outcome = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text));
    outcome.map_err(|source| KeyError::File { file: name(), source })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(KeyError::LargeFile { file: name(), bytes: text.len() as u64, max: MAX_FILE_BYTES });
    }
    Ok(text)
}
