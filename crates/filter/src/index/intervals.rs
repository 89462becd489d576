//! Many intervals, and those around a point.
//!
//! Invariant: a search tree by [`Interval::order`], each interval once; the heights of a node's two sides differ by at most
//! one; each node knows which interval of its subtree ends last, and has members.
//! Kept by: every way up from a change passes through `balanced`.
//! So a search without a hit goes down one path, and one with hits goes to each of them.

use std::cmp::Ordering;

use super::interval::Interval;
use super::members::{Mark, Members};
use super::visits;
use crate::Key;

/// A node's place, the same for as long as it has members.
pub(super) type NodeId = u32;

/// Below the leaves. It stands first among the nodes, and is never changed.
const NONE: NodeId = 0;

/// Shapes by intervals.
#[derive(Debug)]
pub(super) struct Intervals {
    nodes: Vec<Node>,
    root: NodeId,
    /// Nodes that are in no use.
    free: Vec<NodeId>,
}

#[derive(Debug)]
struct Node {
    interval: Interval,
    members: Members,
    left: NodeId,
    right: NodeId,
    /// Of this subtree, the one that ends last.
    last: NodeId,
    height: u8,
}

impl Default for Intervals {
    fn default() -> Self {
        let mut none = Node::new(Interval { lower: None, upper: None });
        none.height = 0;
        Intervals { nodes: vec![none], root: NONE, free: Vec::new() }
    }
}

impl Node {
    fn new(interval: Interval) -> Self {
        Node { interval, members: Members::default(), left: NONE, right: NONE, last: NONE, height: 1 }
    }
}

impl Intervals {
    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// `None`: the shape is there already.
    pub(super) fn insert(&mut self, interval: Interval, shape: u64, mark: Mark) -> Option<NodeId> {
        let id = match self.find(&interval) {
            Some(id) => id,
            None => {
                let id = self.allocate(interval);
                self.root = self.linked(self.root, id);
                id
            }
        };
        self.nodes[id as usize].members.insert(shape, mark).then_some(id)
    }

    /// From the node that inserting it named.
    pub(super) fn remove(&mut self, id: NodeId, shape: u64) {
        let members = &mut self.nodes[id as usize].members;
        members.remove(shape);
        if members.is_empty() {
            self.root = self.unlinked(self.root, id);
            self.nodes[id as usize] = Node::new(Interval { lower: None, upper: None });
            self.free.push(id);
        }
    }

    /// The members of each interval that the key is within.
    pub(super) fn around(&self, key: &Key, found: &mut impl FnMut(&Members)) {
        self.around_under(self.root, key, found);
    }

    /// The members of all.
    pub(super) fn each(&self, found: &mut impl FnMut(&Members)) {
        // Nodes in no use have none.
        self.nodes.iter().for_each(|node| found(&node.members));
    }

    fn around_under(&self, root: NodeId, key: &Key, found: &mut impl FnMut(&Members)) {
        if root == NONE {
            return;
        }
        visits::count();
        let node = self.node(root);
        if !self.node(node.last).interval.reaches(key) {
            return;
        }
        self.around_under(node.left, key, found);
        // What is to the right begins no earlier.
        if node.interval.begins_by(key) {
            if node.interval.reaches(key) {
                found(&node.members);
            }
            self.around_under(node.right, key, found);
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn find(&self, interval: &Interval) -> Option<NodeId> {
        let mut id = self.root;
        while id != NONE {
            let node = self.node(id);
            id = match interval.order(&node.interval) {
                Ordering::Less => node.left,
                Ordering::Equal => return Some(id),
                Ordering::Greater => node.right,
            };
        }
        None
    }

    fn allocate(&mut self, interval: Interval) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = Node::new(interval);
            return id;
        }
        self.nodes.push(Node::new(interval));
        NodeId::try_from(self.nodes.len() - 1).expect("memory ends before four thousand million intervals")
    }

    /// The subtree with one more node.
    fn linked(&mut self, root: NodeId, new: NodeId) -> NodeId {
        if root == NONE {
            return self.balanced(new);
        }
        if self.node(new).interval.order(&self.node(root).interval) == Ordering::Less {
            self.nodes[root as usize].left = self.linked(self.node(root).left, new);
        } else {
            self.nodes[root as usize].right = self.linked(self.node(root).right, new);
        }
        self.balanced(root)
    }

    /// The subtree without one of its nodes.
    fn unlinked(&mut self, root: NodeId, gone: NodeId) -> NodeId {
        let &Node { left, right, .. } = self.node(root);
        match self.node(gone).interval.order(&self.node(root).interval) {
            Ordering::Equal if right == NONE => return left,
            Ordering::Equal => {
                let (first, rest) = self.without_first(right);
                self.nodes[first as usize].left = left;
                self.nodes[first as usize].right = rest;
                return self.balanced(first);
            }
            Ordering::Less => self.nodes[root as usize].left = self.unlinked(left, gone),
            Ordering::Greater => self.nodes[root as usize].right = self.unlinked(right, gone),
        }
        self.balanced(root)
    }

    /// The first node of a subtree, and the rest of it.
    fn without_first(&mut self, root: NodeId) -> (NodeId, NodeId) {
        let &Node { left, right, .. } = self.node(root);
        if left == NONE {
            return (root, right);
        }
        let (first, rest) = self.without_first(left);
        self.nodes[root as usize].left = rest;
        (first, self.balanced(root))
    }

    /// The subtree in balance, when its two sides are, and differ by two at most.
    fn balanced(&mut self, root: NodeId) -> NodeId {
        let &Node { left, right, .. } = self.node(root);
        let (left_height, right_height) = (self.node(left).height, self.node(right).height);
        if left_height > right_height + 1 {
            let &Node { left: outer, right: inner, .. } = self.node(left);
            if self.node(inner).height > self.node(outer).height {
                self.nodes[root as usize].left = self.turned_left(left);
            }
            return self.turned_right(root);
        }
        if right_height > left_height + 1 {
            let &Node { left: inner, right: outer, .. } = self.node(right);
            if self.node(inner).height > self.node(outer).height {
                self.nodes[root as usize].right = self.turned_right(right);
            }
            return self.turned_left(root);
        }
        self.refresh(root);
        root
    }

    fn turned_left(&mut self, root: NodeId) -> NodeId {
        let right = self.node(root).right;
        self.nodes[root as usize].right = self.node(right).left;
        self.nodes[right as usize].left = root;
        self.refresh(root);
        self.refresh(right);
        right
    }

    fn turned_right(&mut self, root: NodeId) -> NodeId {
        let left = self.node(root).left;
        self.nodes[root as usize].left = self.node(left).right;
        self.nodes[left as usize].right = root;
        self.refresh(root);
        self.refresh(left);
        left
    }

    /// What a node knows of its subtree.
    fn refresh(&mut self, root: NodeId) {
        let &Node { left, right, .. } = self.node(root);
        let height = 1 + self.node(left).height.max(self.node(right).height);
        let mut last = root;
        for side in [left, right].into_iter().filter(|side| *side != NONE) {
            let other = self.node(side).last;
            if self.node(last).interval.order_of_ends(&self.node(other).interval) == Ordering::Less {
                last = other;
            }
        }
        let node = &mut self.nodes[root as usize];
        (node.height, node.last) = (height, last);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Bound;

    const MARK: Mark = Mark { certain: false, shared: false };

    fn bound() -> impl Strategy<Value = Option<Bound>> {
        let text = |letter: u8| Key::of_text(&char::from(b'a' + letter).to_string());
        prop_oneof![
            1 => Just(None),
            6 => (0..26_u8, any::<bool>()).prop_map(move |(letter, inclusive)| Some(Bound { key: text(letter), inclusive })),
        ]
    }

    impl Intervals {
        /// The invariant. Returns the height, and the intervals in order.
        fn check(&self, root: NodeId, all: &mut Vec<NodeId>) -> u8 {
            if root == NONE {
                return 0;
            }
            let node = self.node(root);
            let begun = all.len();
            let left = self.check(node.left, all);
            all.push(root);
            let right = self.check(node.right, all);
            assert!(left.abs_diff(right) <= 1 && node.height == 1 + left.max(right), "out of balance");
            assert!(!node.members.is_empty());
            let ends_last = |other: &NodeId| {
                self.node(*other).interval.order_of_ends(&self.node(node.last).interval) != Ordering::Greater
            };
            assert!(all[begun..].contains(&node.last) && all[begun..].iter().all(ends_last));
            node.height
        }
    }

    proptest! {
        #[test]
        fn intervals_come_and_go_and_each_point_finds_its_own(
            steps in proptest::collection::vec((bound(), bound(), any::<bool>(), any::<prop::sample::Index>()), 0..200),
        ) {
            let (mut intervals, mut model) = (Intervals::default(), BTreeMap::new());
            for (shape, (lower, upper, goes, which)) in (0_u64..).zip(steps) {
                if goes && !model.is_empty() {
                    let shape = *model.keys().nth(which.index(model.len())).unwrap();
                    let (id, _) = model.remove(&shape).unwrap();
                    intervals.remove(id, shape);
                } else {
                    let interval = Interval { lower, upper };
                    let id = intervals.insert(interval.clone(), shape, MARK).unwrap();
                    prop_assert_eq!(intervals.insert(interval.clone(), shape, MARK), None);
                    model.insert(shape, (id, interval));
                }
                let mut all = Vec::new();
                intervals.check(intervals.root, &mut all);
                let in_order = |pair: &[NodeId]| {
                    intervals.node(pair[0]).interval.order(&intervals.node(pair[1]).interval) == Ordering::Less
                };
                prop_assert!(all.windows(2).all(in_order));
                prop_assert_eq!(all.len() + intervals.free.len() + 1, intervals.nodes.len());
                prop_assert_eq!(intervals.is_empty(), model.is_empty());
            }
            for letter in 'a'..='z' {
                let key = Key::of_text(&letter.to_string());
                let mut found = Vec::new();
                intervals.around(&key, &mut |members| members.each(|shape, _| found.push(shape)));
                found.sort_unstable();
                let within = |(_, interval): &(NodeId, Interval)| interval.begins_by(&key) && interval.reaches(&key);
                let expected: Vec<_> = model.iter().filter(|(_, entry)| within(entry)).map(|(shape, _)| *shape).collect();
                prop_assert_eq!(found, expected, "at {}", letter);
            }
        }
    }
}
