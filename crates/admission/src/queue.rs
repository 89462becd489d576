//! The wait queue: a short wait instead of a refusal.
//!
//! Invariant: a unit that is handed out is held by exactly one: the visitor it was handed to, or nobody and then it is free
//! again. A visitor who goes away, at whatever point, leaves the line and takes no unit along.
//! Kept by: a unit travels through a oneshot channel, which drops it if the visitor is gone; [`Waiting`] leaves on drop.
//! Not here: whose turn it is ([`Line`]), and where units come from; see `serve` in `door.rs`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::core::line::{Full, Line, Place};
use crate::visitor::User;

/// Visitors that wait for a `U`, in a lane for each user; the anonymous share one.
pub(crate) struct Queue<U> {
    state: Mutex<State<U>>,
}

struct State<U> {
    line: Line<User, oneshot::Sender<U>>,
    /// Somebody serves the line.
    served: bool,
}

/// One who waits.
pub(crate) struct Waiting<'a, U> {
    queue: &'a Queue<U>,
    place: Place<User>,
    unit: oneshot::Receiver<U>,
}

/// How the wait ended without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InVain {
    Deadline,
    /// The line was sent home.
    Closed,
}

impl<U> Queue<U> {
    pub(crate) fn new(max: usize, max_per_user: usize) -> Self {
        Queue { state: Mutex::new(State { line: Line::new(max, max_per_user), served: false }) }
    }

    /// A place in the line. True besides if nobody serves it yet: then the caller must see to it.
    pub(crate) fn join(&self, user: Option<User>) -> Result<(Waiting<'_, U>, bool), Full> {
        let (sender, unit) = oneshot::channel();
        let mut state = self.lock();
        let place = state.line.join(user, sender)?;
        let unserved = !std::mem::replace(&mut state.served, true);
        Ok((Waiting { queue: self, place, unit }, unserved))
    }

    /// Hands a unit to whose turn it is; back if nobody waits.
    pub(crate) fn hand(&self, mut unit: U) -> Result<(), U> {
        loop {
            let Some(visitor) = self.lock().line.call() else { return Err(unit) };
            match visitor.send(unit) {
                Ok(()) => return Ok(()),
                Err(refused) => unit = refused, // gone already; the next one
            }
        }
    }

    /// Whether to go on serving. Once false, the next to join finds nobody serving.
    pub(crate) fn serves_on(&self) -> bool {
        let mut state = self.lock();
        state.served = state.line.len() > 0;
        state.served
    }

    /// Whoever served is gone.
    pub(crate) fn abandoned(&self) {
        self.lock().served = false;
    }

    /// Sends everybody home.
    pub(crate) fn close(&self) {
        while let Some(visitor) = { self.lock().line.call() } {
            drop(visitor);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().line.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<U>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<U> Waiting<'_, U> {
    pub(crate) async fn until(mut self, deadline: Instant) -> Result<U, InVain> {
        match timeout_at(deadline, &mut self.unit).await {
            Ok(Ok(unit)) => Ok(unit),
            Ok(Err(_)) => Err(InVain::Closed),
            Err(_) => {
                // It may have been handed over in this very moment.
                self.unit.close();
                self.unit.try_recv().map_err(|_| InVain::Deadline)
            }
        }
    }
}

impl<U> Drop for Waiting<'_, U> {
    fn drop(&mut self) {
        let left = self.queue.lock().line.leave(&self.place);
        drop(left); // outside the lock
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::visitor::Visitor;

    const SOON: Duration = Duration::from_secs(1);

    fn user(id: &str) -> Option<User> {
        Visitor::user(id).unwrap().user
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_goes_to_the_one_whose_turn_it_is() {
        let queue = Queue::new(10, 10);
        let (ada, first) = queue.join(user("ada")).unwrap();
        let (greedy, second) = queue.join(user("ada")).unwrap();
        let (bob, third) = queue.join(user("bob")).unwrap();
        assert_eq!((first, second, third), (true, false, false));
        for unit in 1..=3 {
            queue.hand(unit).unwrap();
        }
        let deadline = Instant::now() + SOON;
        assert_eq!(ada.until(deadline).await, Ok(1));
        assert_eq!(bob.until(deadline).await, Ok(2));
        assert_eq!(greedy.until(deadline).await, Ok(3));
        assert_eq!(queue.hand(4), Err(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_its_deadline_and_leaves_no_trace() {
        let queue = Queue::<u32>::new(10, 10);
        let begun = Instant::now();
        let (ada, _) = queue.join(user("ada")).unwrap();
        assert_eq!(ada.until(begun + SOON).await, Err(InVain::Deadline));
        assert_eq!((begun.elapsed(), queue.len()), (SOON, 0));
        assert_eq!(queue.hand(1), Err(1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_away_leaves_the_line_and_the_unit() {
        let queue = Queue::new(10, 10);
        let unit = Arc::new(());
        let (gone, _) = queue.join(user("ada")).unwrap();
        let (late, _) = queue.join(user("bob")).unwrap();
        drop(gone);
        queue.hand(unit.clone()).unwrap();
        drop(late); // after it was handed over
        assert_eq!((Arc::strong_count(&unit), queue.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn closing_sends_everybody_home_at_once() {
        let queue = Queue::<u32>::new(10, 10);
        let (ada, _) = queue.join(user("ada")).unwrap();
        queue.close();
        let begun = Instant::now();
        assert_eq!(ada.until(begun + SOON).await, Err(InVain::Closed));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[test]
    fn somebody_serves_as_long_as_somebody_waits() {
        let queue = Queue::<u32>::new(10, 10);
        let (ada, unserved) = queue.join(None).unwrap();
        assert!(unserved && queue.serves_on());
        drop(ada);
        assert!(!queue.serves_on());
        let (_bob, unserved) = queue.join(None).unwrap();
        assert!(unserved);
        queue.abandoned();
        assert!(queue.join(None).unwrap().1);
    }

    #[test]
    fn a_full_queue_says_so() {
        let queue = Queue::<u32>::new(2, 1);
        let _ada = queue.join(user("ada")).unwrap();
        assert!(queue.join(user("ada")).is_err());
        let _bob = queue.join(user("bob")).unwrap();
        assert!(queue.join(user("eve")).is_err());
    }

    /// Where nobody is identified, everybody is anonymous, and the bound for one user would be the bound for all.
    #[test]
    fn the_bound_for_one_user_is_none_for_the_anonymous() {
        let queue = Queue::<u32>::new(20, 1);
        let waiting: Vec<_> = (0..20).map(|_| queue.join(None).unwrap()).collect();
        assert!(queue.join(None).is_err());
        drop(waiting);
    }
}
