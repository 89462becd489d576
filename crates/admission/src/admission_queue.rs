//! Queue of requests that wait for a unit.
//!
//! Invariant: a unit that is handed over is owned by exactly one request, or released. A request
//! that is cancelled at any point leaves the queue and owns no unit.
//! Enforced by: a unit is sent through a oneshot channel, which drops it if the receiver was
//! dropped. [`WaitGuard`] leaves the queue on drop.
//! Out of scope: the order ([`WaitQueue`]), and the source of units; see `serve_queue` in
//! `controller.rs`.

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::client_identity::UserId;
use crate::core::wait_queue::{QueuePosition, WaitQueue, WaitQueueFull};

/// Requests that wait for a `U`, in one lane per user. Anonymous requests share a lane.
pub(crate) struct AdmissionQueue<U> {
    state: Mutex<State<U>>,
}

struct State<U> {
    waiters: WaitQueue<UserId, oneshot::Sender<U>>,
    /// Whether a task hands units to the queue.
    has_server: bool,
}

/// A waiting request. Dropping it leaves the queue.
pub(crate) struct WaitGuard<'a, U> {
    queue: &'a AdmissionQueue<U>,
    position: QueuePosition<UserId>,
    unit: oneshot::Receiver<U>,
}

/// How a wait ended without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitError {
    Deadline,
    /// The queue was closed.
    Closed,
}

impl<U> AdmissionQueue<U> {
    pub(crate) fn new(max: usize, max_per_user: usize) -> Self {
        AdmissionQueue {
            state: Mutex::new(State { waiters: WaitQueue::new(max, max_per_user), has_server: false }),
        }
    }

    /// Joins the queue. Also returns whether the caller must start a task that hands units to the
    /// queue.
    pub(crate) fn join(&self, user: Option<UserId>) -> Result<(WaitGuard<'_, U>, bool), WaitQueueFull> {
        let (sender, unit) = oneshot::channel();
        let mut state = self.state.lock();
        let position = state.waiters.join(user, sender)?;
        let needs_server = !std::mem::replace(&mut state.has_server, true);
        Ok((WaitGuard { queue: self, position, unit }, needs_server))
    }

    /// Hands a unit to the next request. Returns it if the queue is empty.
    pub(crate) fn hand_over(&self, mut unit: U) -> Result<(), U> {
        loop {
            let Some(client) = self.state.lock().waiters.pop_next() else { return Err(unit) };
            match client.send(unit) {
                Ok(()) => return Ok(()),
                Err(refused) => unit = refused, // cancelled; try the next one
            }
        }
    }

    /// Returns whether the serving task must continue. After `false`, the next request that joins
    /// must start a new task.
    pub(crate) fn keep_serving(&self) -> bool {
        let mut state = self.state.lock();
        state.has_server = state.waiters.len() > 0;
        state.has_server
    }

    /// Records that the serving task has ended.
    pub(crate) fn server_stopped(&self) {
        self.state.lock().has_server = false;
    }

    /// Removes all requests; their waits end with [`WaitError::Closed`].
    pub(crate) fn close(&self) {
        while let Some(client) = { self.state.lock().waiters.pop_next() } {
            drop(client);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiters.len()
    }
}

impl<U> WaitGuard<'_, U> {
    /// Waits for a unit until the deadline.
    pub(crate) async fn wait_until(mut self, deadline: Instant) -> Result<U, WaitError> {
        match timeout_at(deadline, &mut self.unit).await {
            Ok(Ok(unit)) => Ok(unit),
            Ok(Err(_)) => Err(WaitError::Closed),
            Err(_) => {
                // A unit may have been sent at the same moment.
                self.unit.close();
                self.unit.try_recv().map_err(|_| WaitError::Deadline)
            }
        }
    }
}

impl<U> Drop for WaitGuard<'_, U> {
    fn drop(&mut self) {
        let sender = self.queue.state.lock().waiters.remove(&self.position);
        drop(sender); // outside the lock
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::client_identity::ClientIdentity;

    const SOON: Duration = Duration::from_secs(1);

    fn user(id: &str) -> Option<UserId> {
        ClientIdentity::user(id).unwrap().user
    }

    #[tokio::test(start_paused = true)]
    async fn units_are_handed_to_users_in_turn() {
        let queue = AdmissionQueue::new(10, 10);
        let (ada, first) = queue.join(user("ada")).unwrap();
        let (ada_again, second) = queue.join(user("ada")).unwrap();
        let (bob, third) = queue.join(user("bob")).unwrap();
        assert_eq!((first, second, third), (true, false, false));
        for unit in 1..=3 {
            queue.hand_over(unit).unwrap();
        }
        let deadline = Instant::now() + SOON;
        assert_eq!(ada.wait_until(deadline).await, Ok(1));
        assert_eq!(bob.wait_until(deadline).await, Ok(2));
        assert_eq!(ada_again.wait_until(deadline).await, Ok(3));
        assert_eq!(queue.hand_over(4), Err(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_its_deadline_and_leaves_no_trace() {
        let queue = AdmissionQueue::<u32>::new(10, 10);
        let started = Instant::now();
        let (ada, _) = queue.join(user("ada")).unwrap();
        assert_eq!(ada.wait_until(started + SOON).await, Err(WaitError::Deadline));
        assert_eq!((started.elapsed(), queue.len()), (SOON, 0));
        assert_eq!(queue.hand_over(1), Err(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_leaves_the_queue_and_the_unit() {
        let queue = AdmissionQueue::new(10, 10);
        let unit = Arc::new(());
        let (cancelled, _) = queue.join(user("ada")).unwrap();
        let (late, _) = queue.join(user("bob")).unwrap();
        drop(cancelled);
        queue.hand_over(unit.clone()).unwrap();
        drop(late); // after the unit was sent
        assert_eq!((Arc::strong_count(&unit), queue.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_all_waits_immediately() {
        let queue = AdmissionQueue::<u32>::new(10, 10);
        let (ada, _) = queue.join(user("ada")).unwrap();
        queue.close();
        let started = Instant::now();
        assert_eq!(ada.wait_until(started + SOON).await, Err(WaitError::Closed));
        assert_eq!(started.elapsed(), Duration::ZERO);
    }

    #[test]
    fn a_serving_task_is_required_while_requests_wait() {
        let queue = AdmissionQueue::<u32>::new(10, 10);
        let (ada, needs_server) = queue.join(None).unwrap();
        assert!(needs_server && queue.keep_serving());
        drop(ada);
        assert!(!queue.keep_serving());
        let (_bob, needs_server) = queue.join(None).unwrap();
        assert!(needs_server);
        queue.server_stopped();
        assert!(queue.join(None).unwrap().1);
    }

    #[test]
    fn a_full_queue_refuses_to_join() {
        let queue = AdmissionQueue::<u32>::new(2, 1);
        let _ada = queue.join(user("ada")).unwrap();
        assert!(queue.join(user("ada")).is_err());
        let _bob = queue.join(user("bob")).unwrap();
        assert!(queue.join(user("eve")).is_err());
    }

    /// Without identification all requests are anonymous, and the per-user bound would bound all of
    /// them.
    #[test]
    fn the_per_user_bound_does_not_apply_to_anonymous_requests() {
        let queue = AdmissionQueue::<u32>::new(20, 1);
        let waiting: Vec<_> = (0..20).map(|_| queue.join(None).unwrap()).collect();
        assert!(queue.join(None).is_err());
        drop(waiting);
    }
}
