//! Task registry: one entry for each task that the server has spawned.
//!
//! Invariant: an entry exists exactly as long as its task's future.
//! Enforced by: the future holds its [`TaskEntry`]; dropping the entry frees its slot. If the task
//! ends before its abort handle is registered, `set_handle` discards the handle and frees the slot.
//!
//! An entry costs 16 bytes. Live streams are not notified of a drain; those left at its end are
//! aborted.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Registry of running tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskRegistry {
    state: Mutex<State>,
    emptied: Notify,
}

/// Slots of a registry.
#[derive(Debug, Default)]
struct State {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
}

/// Slot of one task.
#[derive(Debug)]
enum TaskSlot {
    Free,
    /// The task has been spawned; its abort handle isn't registered yet.
    Starting,
    /// The task ended before its abort handle was registered.
    Ended,
    Running(AbortHandle),
}

/// Guard of a task's registry slot. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct TaskEntry {
    registry: Arc<TaskRegistry>,
    slot: u32,
}

impl TaskRegistry {
    /// Returns a new entry, or `None` if `max` slots are in use.
    pub(crate) fn register(self: &Arc<Self>, max: usize) -> Option<TaskEntry> {
        let mut state = self.state.lock();
        if state.len() >= max {
            return None;
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(TaskSlot::Free);
            u32::try_from(state.slots.len() - 1).expect("a process has fewer than 2³² sockets")
        });
        state.slots[slot as usize] = TaskSlot::Starting;
        Some(TaskEntry { registry: Arc::clone(self), slot })
    }

    /// Registers the abort handle of the task that holds the entry of this slot.
    pub(crate) fn set_handle(&self, slot: u32, handle: AbortHandle) {
        let mut state = self.state.lock();
        match &mut state.slots[slot as usize] {
            starting @ TaskSlot::Starting => *starting = TaskSlot::Running(handle),
            TaskSlot::Ended => self.release(state, slot),
            TaskSlot::Free | TaskSlot::Running(_) => unreachable!("a slot's handle is registered once"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().len()
    }

    /// Aborts every task whose abort handle is registered; returns their number.
    pub(crate) fn abort_all(&self) -> usize {
        let state = self.state.lock();
        let running = state.slots.iter().filter_map(|slot| match slot {
            TaskSlot::Running(handle) => Some(handle.clone()),
            TaskSlot::Free | TaskSlot::Starting | TaskSlot::Ended => None,
        });
        let running: Vec<_> = running.collect();
        drop(state); // `abort` may drop the future, whose entry takes the lock
        running.iter().for_each(AbortHandle::abort);
        running.len()
    }

    /// Waits until the registry is empty.
    pub(crate) async fn wait_empty(&self) {
        loop {
            let notified = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn release(&self, mut state: MutexGuard<'_, State>, slot: u32) {
        let released = std::mem::replace(&mut state.slots[slot as usize], TaskSlot::Free);
        state.free.push(slot);
        let empty = state.len() == 0;
        if empty {
            *state = State::default();
        }
        drop(state);
        drop(released); // may drop the task, outside the lock
        if empty {
            self.emptied.notify_waiters();
        }
    }
}

impl State {
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl TaskEntry {
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for TaskEntry {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        match &mut state.slots[self.slot as usize] {
            starting @ TaskSlot::Starting => *starting = TaskSlot::Ended,
            TaskSlot::Running(_) => self.registry.release(state, self.slot),
            TaskSlot::Free | TaskSlot::Ended => unreachable!("a slot has one entry"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn an_entry_lasts_as_long_as_its_future() {
        let registry = Arc::new(TaskRegistry::default());
        let entry = registry.register(1).unwrap();
        assert!(registry.register(1).is_none(), "the limit is one");
        let slot = entry.slot();
        let task = tokio::spawn(async move {
            let _entry = entry;
            pending::<()>().await;
        });
        registry.set_handle(slot, task.abort_handle());
        assert_eq!(registry.len(), 1);
        assert_eq!(registry.abort_all(), 1);
        registry.wait_empty().await;
        assert!(registry.register(1).is_some());
    }

    #[tokio::test]
    async fn a_task_that_ends_before_its_handle_is_registered_leaves_no_entry() {
        let registry = Arc::new(TaskRegistry::default());
        let entry = registry.register(1).unwrap();
        let slot = entry.slot();
        drop(entry);
        assert_eq!(registry.len(), 1, "the slot is kept until the handle is registered");
        registry.set_handle(slot, tokio::spawn(async {}).abort_handle());
        assert_eq!(registry.len(), 0);
        assert_eq!(registry.state.lock().slots.capacity(), 0);
    }
}
