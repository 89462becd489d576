//! Who is connected: one entry for each task that the server started.
//!
//! Invariant: an entry exists exactly as long as its task's future, however that ends.
//! Kept by: the future holds its [`Entry`], whose drop removes it. A task may end before its starter has its handle to hand
//! over; the handle is then not kept.
//! It costs a stream 16 bytes: streams are told nothing during a drain, and those that are left at its end are aborted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

#[derive(Debug, Default)]
pub(crate) struct Registry {
    state: Mutex<State>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
enum Place {
    Free,
    /// Its task has been made, and may run already.
    Starting,
    /// Its task ended before its handle came.
    Ended,
    Running(AbortHandle),
}

/// A task's own hold on its place.
#[derive(Debug)]
pub(crate) struct Entry {
    registry: Arc<Registry>,
    place: u32,
}

impl Registry {
    /// A new entry, unless there are `max`.
    pub(crate) fn enter(self: &Arc<Self>, max: usize) -> Option<Entry> {
        let mut state = self.lock();
        if state.len() >= max {
            return None;
        }
        let place = state.free.pop().unwrap_or_else(|| {
            state.places.push(Place::Free);
            u32::try_from(state.places.len() - 1).expect("a process has fewer than 2³² sockets")
        });
        state.places[place as usize] = Place::Starting;
        Some(Entry { registry: Arc::clone(self), place })
    }

    /// Runs a task's future, which holds the entry of this place, from now on abortable.
    pub(crate) fn keep(&self, place: u32, handle: AbortHandle) {
        let mut state = self.lock();
        match &mut state.places[place as usize] {
            place @ Place::Starting => *place = Place::Running(handle),
            Place::Ended => self.leave(state, place),
            Place::Free | Place::Running(_) => unreachable!("a place has one starter"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Aborts every task that is left, and says how many.
    pub(crate) fn abort_all(&self) -> usize {
        let state = self.lock();
        let running = state.places.iter().filter_map(|place| match place {
            Place::Running(handle) => Some(handle.clone()),
            Place::Free | Place::Starting | Place::Ended => None,
        });
        let running: Vec<_> = running.collect();
        drop(state); // an abort may drop the future, and with it its entry, here and now
        running.iter().for_each(AbortHandle::abort);
        running.len()
    }

    /// Resolves when there is no entry.
    pub(crate) async fn emptied(&self) {
        loop {
            let notified = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, place: u32) {
        let left = std::mem::replace(&mut state.places[place as usize], Place::Free);
        state.free.push(place);
        let empty = state.len() == 0;
        if empty {
            *state = State::default();
        }
        drop(state);
        drop(left); // it may be the last hold on the task
        if empty {
            self.emptied.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl Entry {
    pub(crate) fn place(&self) -> u32 {
        self.place
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        match &mut state.places[self.place as usize] {
            place @ Place::Starting => *place = Place::Ended,
            Place::Running(_) => self.registry.leave(state, self.place),
            Place::Free | Place::Ended => unreachable!("a place has one entry"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn an_entry_lasts_as_long_as_its_future() {
        let registry = Arc::new(Registry::default());
        let entry = registry.enter(1).unwrap();
        assert!(registry.enter(1).is_none(), "there is room for one");
        let place = entry.place();
        let task = tokio::spawn(async move {
            let _entry = entry;
            pending::<()>().await;
        });
        registry.keep(place, task.abort_handle());
        assert_eq!(registry.len(), 1);
        assert_eq!(registry.abort_all(), 1);
        registry.emptied().await;
        assert!(registry.enter(1).is_some());
    }

    #[tokio::test]
    async fn a_task_that_ends_before_its_handle_comes_leaves_nothing() {
        let registry = Arc::new(Registry::default());
        let entry = registry.enter(1).unwrap();
        let place = entry.place();
        drop(entry);
        assert_eq!(registry.len(), 1, "until its starter has seen it");
        registry.keep(place, tokio::spawn(async {}).abort_handle());
        assert_eq!(registry.len(), 0);
        assert_eq!(registry.lock().places.capacity(), 0);
    }
}
