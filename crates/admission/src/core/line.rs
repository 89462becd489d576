//! Who waits, and whose turn it is.
//!
//! Invariant: at most `max` wait, at most `max_per_lane` of one lane (a user); lanes take turns, and within a lane the first
//! to come is the first to go. Whoever left is never called. `None` is the lane of all whom nobody knows: many people, so only
//! `max` bounds it.
//! Kept by: a lane is in `turns` exactly once while somebody waits in it, and goes to the back after each call.
//! Not here: deadlines, wakers, units; see `queue.rs`.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// People in lanes. `L` names a lane, `T` is what is called.
#[derive(Debug)]
pub(crate) struct Line<L, T> {
    lanes: HashMap<Option<L>, VecDeque<(u64, T)>>,
    turns: VecDeque<Option<L>>,
    len: usize,
    max: usize,
    max_per_lane: usize,
    next_number: u64,
}

/// A place in the line, to leave it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place<L> {
    lane: Option<L>,
    number: u64,
}

/// There is no room to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) waiting: usize,
}

impl<L: Hash + Eq + Clone, T> Line<L, T> {
    pub(crate) fn new(max: usize, max_per_lane: usize) -> Self {
        let (lanes, turns) = (HashMap::new(), VecDeque::new());
        Line { lanes, turns, len: 0, max, max_per_lane, next_number: 0 }
    }

    pub(crate) fn join(&mut self, lane: Option<L>, who: T) -> Result<Place<L>, Full> {
        let in_lane = self.lanes.get(&lane).map_or(0, VecDeque::len);
        if self.len >= self.max || in_lane >= self.bound(lane.as_ref()) {
            return Err(Full { waiting: self.len });
        }
        if in_lane == 0 {
            self.turns.push_back(lane.clone());
        }
        let number = self.next_number;
        self.next_number += 1;
        self.lanes.entry(lane.clone()).or_default().push_back((number, who));
        self.len += 1;
        debug_assert!(self.holds());
        Ok(Place { lane, number })
    }

    /// Calls the next one, who thereby leaves.
    pub(crate) fn call(&mut self) -> Option<T> {
        let lane = self.turns.pop_front()?;
        let people = self.lanes.get_mut(&lane).expect("a lane that has a turn exists");
        let (_, who) = people.pop_front().expect("a lane that has a turn is not empty");
        if people.is_empty() {
            self.lanes.remove(&lane);
        } else {
            self.turns.push_back(lane);
        }
        self.len -= 1;
        debug_assert!(self.holds());
        Some(who)
    }

    /// Whoever was called already is not here any more: nothing then.
    pub(crate) fn leave(&mut self, place: &Place<L>) -> Option<T> {
        let people = self.lanes.get_mut(&place.lane)?;
        let at = people.binary_search_by_key(&place.number, |(number, _)| *number).ok()?;
        let (_, who) = people.remove(at)?;
        if people.is_empty() {
            self.lanes.remove(&place.lane);
            self.turns.retain(|lane| *lane != place.lane);
        }
        self.len -= 1;
        debug_assert!(self.holds());
        Some(who)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bound(&self, lane: Option<&L>) -> usize {
        if lane.is_some() { self.max_per_lane } else { self.max }
    }

    fn holds(&self) -> bool {
        let counted: usize = self.lanes.values().map(VecDeque::len).sum();
        let within = |(lane, people): (&Option<L>, &VecDeque<_>)| {
            (1..=self.bound(lane.as_ref())).contains(&people.len())
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

    fn line(entries: &[(&'static str, u32)]) -> Line<&'static str, u32> {
        let mut line = Line::new(100, 100);
        for (lane, who) in entries {
            line.join(Some(*lane), *who).unwrap();
        }
        line
    }

    fn called(line: &mut Line<&'static str, u32>) -> Vec<u32> {
        std::iter::from_fn(|| line.call()).collect()
    }

    #[test]
    fn users_take_turns_however_many_one_of_them_sends() {
        let mut line =
            line(&[("greedy", 1), ("greedy", 2), ("greedy", 3), ("ada", 10), ("bob", 20), ("ada", 11)]);
        assert_eq!(called(&mut line), [1, 10, 20, 2, 11, 3]);
        assert_eq!(line.len(), 0);
    }

    #[test]
    fn who_comes_back_waits_behind_the_others() {
        let mut line = line(&[("ada", 1), ("bob", 2)]);
        assert_eq!(line.call(), Some(1));
        line.join(Some("ada"), 3).unwrap();
        assert_eq!(called(&mut line), [2, 3]);
    }

    #[test]
    fn who_left_is_never_called_and_leaves_once() {
        let mut line = line(&[("ada", 1)]);
        let place = line.join(Some("bob"), 2).unwrap();
        assert_eq!(line.leave(&place), Some(2));
        assert_eq!(line.leave(&place), None);
        assert_eq!(called(&mut line), [1]);
    }

    #[test]
    fn a_full_line_and_a_full_lane_say_so() {
        let mut line = Line::new(3, 2);
        line.join(Some("ada"), 1).unwrap();
        line.join(Some("ada"), 2).unwrap();
        assert_eq!(line.join(Some("ada"), 3), Err(Full { waiting: 2 }));
        line.join(Some("bob"), 4).unwrap();
        assert_eq!(line.join(Some("eve"), 5), Err(Full { waiting: 3 }));
        assert_eq!(Line::new(0, 9).join(Some("ada"), 1), Err(Full { waiting: 0 }));
    }

    #[test]
    fn those_whom_nobody_knows_are_many_and_only_the_whole_line_bounds_them() {
        let mut line = Line::new(5, 1);
        for who in 0..4 {
            line.join(None, who).unwrap();
        }
        line.join(Some("ada"), 10).unwrap();
        assert_eq!(line.join(None, 5), Err(Full { waiting: 5 }));
        assert_eq!(called(&mut line), [0, 10, 1, 2, 3], "and they have one lane's turn");
    }

    #[derive(Debug, Clone)]
    enum Act {
        Join(Option<u8>),
        Call,
        Leave(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => prop::option::of(0_u8..5).prop_map(Act::Join),
            2 => Just(Act::Call),
            1 => (0_usize..40).prop_map(Act::Leave),
        ];
        prop::collection::vec(act, 0..200)
    }

    proptest! {
        /// `holds` is asserted after every change; here: each is called or leaves exactly once, and nobody of a lane
        /// overtakes another of it.
        #[test]
        fn everybody_leaves_the_line_exactly_once_and_in_order_within_a_lane(acts in acts()) {
            let (mut line, mut places, mut gone) = (Line::new(20, 6), Vec::new(), Vec::new());
            let mut last_called = HashMap::new();
            for (number, act) in acts.into_iter().enumerate() {
                match act {
                    Act::Join(lane) => places.extend(line.join(lane, (lane, number)).map(|place| (place, number))),
                    Act::Call => {
                        if let Some((lane, number)) = line.call() {
                            let before = last_called.insert(lane, number);
                            prop_assert!(before < Some(number));
                            gone.push(number);
                        }
                    }
                    Act::Leave(which) => {
                        if let Some((place, _)) = places.get(which) {
                            gone.extend(line.leave(place).map(|(_, number)| number));
                        }
                    }
                }
            }
            gone.extend(std::iter::from_fn(|| line.call()).map(|(_, number)| number));
            gone.sort_unstable();
            let joined: Vec<_> = places.into_iter().map(|(_, number)| number).collect();
            prop_assert_eq!(gone, joined);
        }
    }
}
