//! Answers that many get at once: whoever waits for the same change asks the same, and is told the same.
//!
//! Invariant: what is found says the same as what would be made. Kept by: an answer is known by its shape and where it begins and ends; a handle
//! is never used twice, and whatever is merged between two offsets of a shape, it leads to the same rows.
//! Bounds: `PLACES` answers of `LARGEST` bytes. Two shapes of one place push each other out, and nothing is lost by that but time.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_shapes::Offset;
use http::HeaderValue;

/// More is read for each who asks.
pub(crate) const LARGEST: u64 = 16 * 1024;
const PLACES: usize = 64;

/// The answers that were given last.
#[derive(Debug)]
pub(crate) struct Recent {
    places: [Mutex<Option<Arc<Told>>>; PLACES],
    chance: RandomState,
}

/// What tells an answer from all others of its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) asked: Offset,
    pub(crate) last: Offset,
    /// What has been seen, if the answer says that there is no more.
    pub(crate) up_to_date: Option<u64>,
}

/// An answer, but for what is each client's own.
pub(crate) struct Told {
    pub(crate) which: Which,
    pub(crate) handle: HeaderValue,
    pub(crate) offset: HeaderValue,
    pub(crate) etag: HeaderValue,
    pub(crate) body: Bytes,
}

impl Recent {
    /// The answer, from whoever was told it last, or made now.
    pub(crate) fn tell<E>(
        &self,
        handle: &str,
        which: Which,
        make: impl FnOnce() -> Result<Told, E>,
    ) -> Result<Arc<Told>, E> {
        let place = &self.places[self.chance.hash_one(handle) as usize % PLACES];
        let told = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_same = |told: &Arc<Told>| told.which == which && told.handle == handle;
        if let Some(told) = told.filter(is_same) {
            return Ok(told);
        }
        let told = Arc::new(make()?);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&told));
        Ok(told)
    }
}

impl fmt::Debug for Told {
    /// Without the rows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told")
            .field("handle", &self.handle)
            .field("which", &self.which)
            .finish_non_exhaustive()
    }
}

impl Default for Recent {
    fn default() -> Self {
        Recent { places: std::array::from_fn(|_| Mutex::default()), chance: RandomState::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn which(asked: u64, last: u64, up_to_date: Option<u64>) -> Which {
        Which { asked: Offset::new(asked, 0), last: Offset::new(last, 0), up_to_date }
    }

    #[test]
    fn the_same_is_made_once_and_anything_else_anew() {
        let (recent, mut made) = (Recent::default(), 0);
        let mut tell = |handle: &'static str, which: Which| {
            let told = recent.tell(handle, which, || {
                made += 1;
                let value = HeaderValue::from_static("x");
                let body = Bytes::from(format!("{handle} {which:?}"));
                let handle = HeaderValue::from_static(handle);
                Ok::<_, Infallible>(Told { which, handle, offset: value.clone(), etag: value, body })
            });
            assert_eq!(told.unwrap().body, format!("{handle} {which:?}"));
        };
        let first = which(1, 5, Some(9));
        (0..3).for_each(|_| tell("1-2", first));
        for other in [which(2, 5, Some(9)), which(1, 6, Some(9)), which(1, 5, Some(10)), which(1, 5, None)] {
            tell("1-2", other);
        }
        (0..1_000).for_each(|_| tell("1-3", first));
        assert_eq!(made, 1 + 4 + 1);
    }
}
