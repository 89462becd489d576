//! A file of keys that may change while we run.
//!
//! Invariant: no token is checked with a set that is older than [`FRESH`] and one look at the file; tokens with an unknown key
//! id make us look at most once in [`PATIENCE`], however many come. A file that can't be read leaves the last good set.
//! Kept by: one look at a time, behind a lock that everybody who needs the news waits for; the file is read on a blocking
//! thread, bounded in size.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

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
    stamp: Option<Stamp>,
    looked: Instant,
    failed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    fresh: Duration,
    patience: Duration,
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl JwksFile {
    pub(super) fn open(path: &Path) -> Result<Self, KeyError> {
        let (keys, stamp) = read(path)?;
        let known = Known { keys: Arc::new(keys), stamp: Some(stamp), looked: Instant::now(), failed: false };
        let times = Times { fresh: FRESH, patience: PATIENCE };
        let looking = tokio::sync::Mutex::new(());
        Ok(JwksFile { path: path.to_owned(), now: RwLock::new(known), looking, times })
    }

    /// The keys for a token that names this key, or none.
    pub(super) async fn keys(&self, id: Option<&str>) -> Arc<KeySet> {
        let (keys, looked) = self.known();
        let unknown = id.is_some_and(|id| !keys.knows(id));
        let allowed = if unknown { self.times.patience } else { self.times.fresh };
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
        let before = self.now.read().unwrap_or_else(PoisonError::into_inner).stamp;
        let path = self.path.clone();
        let news = tokio::task::spawn_blocking(move || match stamp_of(&path) {
            Ok(stamp) if Some(stamp) == before => Ok(None),
            Ok(_) | Err(_) => read(&path).map(Some),
        });
        let Ok(news) = news.await else { return }; // the runtime ends
        let mut known = self.now.write().unwrap_or_else(PoisonError::into_inner);
        known.looked = Instant::now();
        match news {
            Ok(None) => known.failed = false,
            Ok(Some((keys, stamp))) => {
                info!(keys = keys.len(), "the file of keys changed and was read again");
                metrics::jwks_read(true);
                (known.keys, known.stamp, known.failed) = (Arc::new(keys), Some(stamp), false);
            }
            Err(error) => {
                metrics::jwks_read(false);
                if !known.failed {
                    warn!(%error, "the file of keys can't be read; the last good keys stay");
                }
                (known.stamp, known.failed) = (None, true);
            }
        }
    }
}

fn read(path: &Path) -> Result<(KeySet, Stamp), KeyError> {
    let name = || path.display().to_string();
    let failed = |source| KeyError::File { file: name(), source };
    let stamp = stamp_of(path).map_err(failed)?;
    let mut text = Vec::new();
    // One byte more than allowed is enough to know; the file may grow while we read.
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(KeyError::LargeFile { file: name(), bytes: text.len() as u64, max: MAX_FILE_BYTES });
    }
    Ok((KeySet::parse(&text, &name())?, stamp))
}

/// Taken before reading: a change in between shows as another stamp at the next look.
fn stamp_of(path: &Path) -> std::io::Result<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path)?;
    Ok(Stamp { modified: meta.modified().ok(), bytes: meta.len(), inode: meta.ino() })
}
