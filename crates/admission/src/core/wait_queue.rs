//! Wait queue with one lane per user, served in turn.
//!
//! Invariant: at most `max` items wait, and at most `max_per_lane` in one lane. Lanes are served
//! round-robin, and a lane is first in, first out. `None` is the lane of anonymous requests, from
//! many clients; only `max` bounds it.
//! Enforced by: a lane is in `turns` exactly once while it is not empty, and moves to the back
//! after each pop.
//! Out of scope: deadlines, wakers, units; see `admission_queue.rs`.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Items in lanes. `L` identifies a lane, `T` is a waiting item.
#[derive(Debug)]
pub(crate) struct WaitQueue<L, T> {
    lanes: HashMap<Option<L>, VecDeque<(u64, T)>>,
    turns: VecDeque<Option<L>>,
    len: usize,
    max: usize,
    max_per_lane: usize,
    next_number: u64,
}

/// Key of a waiting item, to remove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuePosition<L> {
    lane: Option<L>,
    number: u64,
}

/// Error: the queue or the lane is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitQueueFull {
    pub(crate) waiting: usize,
}

impl<L: Hash + Eq + Clone, T> WaitQueue<L, T> {
    pub(crate) fn new(max: usize, max_per_lane: usize) -> Self {
        let (lanes, turns) = (HashMap::new(), VecDeque::new());
        WaitQueue { lanes, turns, len: 0, max, max_per_lane, next_number: 0 }
    }

    pub(crate) fn join(&mut self, lane: Option<L>, item: T) -> Result<QueuePosition<L>, WaitQueueFull> {
        let in_lane = self.lanes.get(&lane).map_or(0, VecDeque::len);
        if self.len >= self.max || in_lane >= self.bound(lane.as_ref()) {
            return Err(WaitQueueFull { waiting: self.len });
        }
        if in_lane == 0 {
            self.turns.push_back(lane.clone());
        }
        let number = self.next_number;
        self.next_number += 1;
        self.lanes.entry(lane.clone()).or_default().push_back((number, item));
        self.len += 1;
        debug_assert!(self.invariants_hold());
        Ok(QueuePosition { lane, number })
    }

    /// Removes and returns the next item.
    pub(crate) fn pop_next(&mut self) -> Option<T> {
        let lane = self.turns.pop_front()?;
        let waiters = self.lanes.get_mut(&lane).expect("a lane that has a turn exists");
        let (_, item) = waiters.pop_front().expect("a lane that has a turn is not empty");
        if waiters.is_empty() {
            self.lanes.remove(&lane);
        } else {
            self.turns.push_back(lane);
        }
        self.len -= 1;
        debug_assert!(self.invariants_hold());
        Some(item)
    }

    /// Removes an item. Returns `None` if it was already popped.
    pub(crate) fn remove(&mut self, position: &QueuePosition<L>) -> Option<T> {
        let waiters = self.lanes.get_mut(&position.lane)?;
        let at = waiters.binary_search_by_key(&position.number, |(number, _)| *number).ok()?;
        let (_, item) = waiters.remove(at)?;
        if waiters.is_empty() {
            self.lanes.remove(&position.lane);
            self.turns.retain(|lane| *lane != position.lane);
        }
        self.len -= 1;
        debug_assert!(self.invariants_hold());
        Some(item)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bound(&self, lane: Option<&L>) -> usize {
        if lane.is_some() { self.max_per_lane } else { self.max }
    }

    fn invariants_hold(&self) -> bool {
        let counted: usize = self.lanes.values().map(VecDeque::len).sum();
        let within = |(lane, waiters): (&Option<L>, &VecDeque<_>)| {
            (1..=self.bound(lane.as_ref())).contains(&waiters.len())
        };
        let bounded = self.lanes.iter().all(within);
        let turns = self.turns.len() == self.lanes.len()
            && self.turns.iter().all(|lane| self.lanes.contains_key(lane));
        counted == self.len && self.len <= self.max && bounded && turns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queue(entries: &[(&'static str, u32)]) -> WaitQueue<&'static str, u32> {
        let mut queue = WaitQueue::new(100, 100);
        for (lane, item) in entries {
            queue.join(Some(*lane), *item).unwrap();
        }
        queue
    }

    fn drain(queue: &mut WaitQueue<&'static str, u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop_next()).collect()
    }

    #[test]
    fn users_take_turns_regardless_of_their_number_of_requests() {
        let mut queue =
            queue(&[("greedy", 1), ("greedy", 2), ("greedy", 3), ("ada", 10), ("bob", 20), ("ada", 11)]);
        assert_eq!(drain(&mut queue), [1, 10, 20, 2, 11, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_lane_that_rejoins_is_served_after_the_others() {
        let mut queue = queue(&[("ada", 1), ("bob", 2)]);
        assert_eq!(queue.pop_next(), Some(1));
        queue.join(Some("ada"), 3).unwrap();
        assert_eq!(drain(&mut queue), [2, 3]);
    }

    #[test]
    fn a_removed_item_is_never_popped_and_is_removed_once() {
        let mut queue = queue(&[("ada", 1)]);
        let position = queue.join(Some("bob"), 2).unwrap();
        assert_eq!(queue.remove(&position), Some(2));
        assert_eq!(queue.remove(&position), None);
        assert_eq!(drain(&mut queue), [1]);
    }

    #[test]
    fn a_full_queue_and_a_full_lane_refuse_to_join() {
        let mut queue = WaitQueue::new(3, 2);
        queue.join(Some("ada"), 1).unwrap();
        queue.join(Some("ada"), 2).unwrap();
        assert_eq!(queue.join(Some("ada"), 3), Err(WaitQueueFull { waiting: 2 }));
        queue.join(Some("bob"), 4).unwrap();
        assert_eq!(queue.join(Some("eve"), 5), Err(WaitQueueFull { waiting: 3 }));
        assert_eq!(WaitQueue::new(0, 9).join(Some("ada"), 1), Err(WaitQueueFull { waiting: 0 }));
    }

    #[test]
    fn only_the_total_bounds_the_anonymous_lane() {
        let mut queue = WaitQueue::new(5, 1);
        for item in 0..4 {
            queue.join(None, item).unwrap();
        }
        queue.join(Some("ada"), 10).unwrap();
        assert_eq!(queue.join(None, 5), Err(WaitQueueFull { waiting: 5 }));
        assert_eq!(drain(&mut queue), [0, 10, 1, 2, 3], "the anonymous lane has one turn per round");
    }

    #[derive(Debug, Clone)]
    enum QueueOperation {
        Join(Option<u8>),
        PopNext,
        Remove(usize),
    }

    fn operations() -> impl Strategy<Value = Vec<QueueOperation>> {
        let operation = prop_oneof![
            3 => prop::option::of(0_u8..5).prop_map(QueueOperation::Join),
            2 => Just(QueueOperation::PopNext),
            1 => (0_usize..40).prop_map(QueueOperation::Remove),
        ];
        prop::collection::vec(operation, 0..200)
    }

    proptest! {
        /// `invariants_hold` is asserted after every operation. Here: each item is popped or
        /// removed exactly once, and in order within a lane.
        #[test]
        fn every_item_leaves_exactly_once_and_in_order_within_a_lane(operations in operations()) {
            let (mut queue, mut positions, mut removed) = (WaitQueue::new(20, 6), Vec::new(), Vec::new());
            let mut last_popped = HashMap::new();
            for (number, operation) in operations.into_iter().enumerate() {
                match operation {
                    QueueOperation::Join(lane) => positions.extend(queue.join(lane, (lane, number)).map(|position| (position, number))),
                    QueueOperation::PopNext => {
                        if let Some((lane, number)) = queue.pop_next() {
                            let before = last_popped.insert(lane, number);
                            prop_assert!(before < Some(number));
                            removed.push(number);
                        }
                    }
                    QueueOperation::Remove(which) => {
                        if let Some((position, _)) = positions.get(which) {
                            removed.extend(queue.remove(position).map(|(_, number)| number));
                        }
                    }
                }
            }
            removed.extend(std::iter::from_fn(|| queue.pop_next()).map(|(_, number)| number));
            removed.sort_unstable();
            let joined: Vec<_> = positions.into_iter().map(|(_, number)| number).collect();
            prop_assert_eq!(removed, joined);
        }
    }
}
