//! Interval tree: finds the intervals that contain a key.
//!
//! An AVL tree ordered by [`KeyInterval::cmp_by_bounds`]. Each node also holds which interval of
//! its subtree has the greatest upper bound. A search without a hit visits one path.
//!
//! Invariant: each interval has one node; the heights of a node's children differ by at most one;
//! each node has filters.
//! Enforced by: every change calls `rebalanced` for each node on the path back to the root.

use std::cmp::Ordering;

use super::filter_set::{FilterMark, FilterSet};
use super::key_interval::KeyInterval;
use super::visits;
use crate::IndexKey;

/// Position of a node in `IntervalTree::nodes`. It stays the same while the node has filters.
pub(super) type NodeId = u32;

/// The child of a leaf: the first node, which is never changed.
const NONE: NodeId = 0;

/// Filters by interval.
#[derive(Debug)]
pub(super) struct IntervalTree {
    nodes: Vec<IntervalNode>,
    root: NodeId,
    /// Unused nodes.
    free: Vec<NodeId>,
}

#[derive(Debug)]
struct IntervalNode {
    interval: KeyInterval,
    filters: FilterSet,
    left: NodeId,
    right: NodeId,
    /// The node of this subtree whose interval has the greatest upper bound.
    last: NodeId,
    height: u8,
}

impl Default for IntervalTree {
    fn default() -> Self {
        let mut none = IntervalNode::new(KeyInterval { lower: None, upper: None });
        none.height = 0;
        IntervalTree { nodes: vec![none], root: NONE, free: Vec::new() }
    }
}

impl IntervalNode {
    fn new(interval: KeyInterval) -> Self {
        IntervalNode {
            interval,
            filters: FilterSet::default(),
            left: NONE,
            right: NONE,
            last: NONE,
            height: 1,
        }
    }
}

impl IntervalTree {
    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Adds a filter and returns its node. `None`: the interval has the filter already.
    pub(super) fn insert(&mut self, interval: KeyInterval, filter: u64, mark: FilterMark) -> Option<NodeId> {
        let id = match self.find(&interval) {
            Some(id) => id,
            None => {
                let id = self.allocate(interval);
                self.root = self.inserted(self.root, id);
                id
            }
        };
        self.nodes[id as usize].filters.insert(filter, mark).then_some(id)
    }

    /// Removes a filter from the node that `insert` returned.
    pub(super) fn remove(&mut self, id: NodeId, filter: u64) {
        let filters = &mut self.nodes[id as usize].filters;
        filters.remove(filter);
        if filters.is_empty() {
            self.root = self.removed(self.root, id);
            self.nodes[id as usize] = IntervalNode::new(KeyInterval { lower: None, upper: None });
            self.free.push(id);
        }
    }

    /// Calls `found` with the filters of each interval that contains the key.
    pub(super) fn containing(&self, key: &IndexKey, found: &mut impl FnMut(&FilterSet)) {
        self.containing_below(self.root, key, found);
    }

    /// Calls `found` with the filters of every interval.
    pub(super) fn for_each(&self, found: &mut impl FnMut(&FilterSet)) {
        // Unused nodes have no filters.
        self.nodes.iter().for_each(|node| found(&node.filters));
    }

    fn containing_below(&self, root: NodeId, key: &IndexKey, found: &mut impl FnMut(&FilterSet)) {
        if root == NONE {
            return;
        }
        visits::count();
        let node = self.node(root);
        if !self.node(node.last).interval.upper_admits(key) {
            return;
        }
        self.containing_below(node.left, key, found);
        // Intervals of the right child start no earlier than this one.
        if node.interval.lower_admits(key) {
            if node.interval.upper_admits(key) {
                found(&node.filters);
            }
            self.containing_below(node.right, key, found);
        }
    }

    fn node(&self, id: NodeId) -> &IntervalNode {
        &self.nodes[id as usize]
    }

    fn find(&self, interval: &KeyInterval) -> Option<NodeId> {
        let mut id = self.root;
        while id != NONE {
            let node = self.node(id);
            id = match interval.cmp_by_bounds(&node.interval) {
                Ordering::Less => node.left,
                Ordering::Equal => return Some(id),
                Ordering::Greater => node.right,
            };
        }
        None
    }

    fn allocate(&mut self, interval: KeyInterval) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = IntervalNode::new(interval);
            return id;
        }
        self.nodes.push(IntervalNode::new(interval));
        NodeId::try_from(self.nodes.len() - 1).expect("memory holds fewer than 2^32 intervals")
    }

    /// Inserts a node into a subtree. Returns the subtree's root.
    fn inserted(&mut self, root: NodeId, new: NodeId) -> NodeId {
        if root == NONE {
            return self.rebalanced(new);
        }
        if self.node(new).interval.cmp_by_bounds(&self.node(root).interval) == Ordering::Less {
            self.nodes[root as usize].left = self.inserted(self.node(root).left, new);
        } else {
            self.nodes[root as usize].right = self.inserted(self.node(root).right, new);
        }
        self.rebalanced(root)
    }

    /// Removes a node from a subtree. Returns the subtree's root.
    fn removed(&mut self, root: NodeId, node: NodeId) -> NodeId {
        let &IntervalNode { left, right, .. } = self.node(root);
        match self.node(node).interval.cmp_by_bounds(&self.node(root).interval) {
            Ordering::Equal if right == NONE => return left,
            Ordering::Equal => {
                let (first, rest) = self.without_first(right);
                self.nodes[first as usize].left = left;
                self.nodes[first as usize].right = rest;
                return self.rebalanced(first);
            }
            Ordering::Less => self.nodes[root as usize].left = self.removed(left, node),
            Ordering::Greater => self.nodes[root as usize].right = self.removed(right, node),
        }
        self.rebalanced(root)
    }

    /// Removes the leftmost node of a subtree. Returns it, and the subtree's root.
    fn without_first(&mut self, root: NodeId) -> (NodeId, NodeId) {
        let &IntervalNode { left, right, .. } = self.node(root);
        if left == NONE {
            return (root, right);
        }
        let (first, rest) = self.without_first(left);
        self.nodes[root as usize].left = rest;
        (first, self.rebalanced(root))
    }

    /// Rotates a subtree whose children are balanced and differ by at most two in height. Returns
    /// its root.
    fn rebalanced(&mut self, root: NodeId) -> NodeId {
        let &IntervalNode { left, right, .. } = self.node(root);
        let (left_height, right_height) = (self.node(left).height, self.node(right).height);
        if left_height > right_height + 1 {
            let &IntervalNode { left: outer, right: inner, .. } = self.node(left);
            if self.node(inner).height > self.node(outer).height {
                self.nodes[root as usize].left = self.rotated_left(left);
            }
            return self.rotated_right(root);
        }
        if right_height > left_height + 1 {
            let &IntervalNode { left: inner, right: outer, .. } = self.node(right);
            if self.node(inner).height > self.node(outer).height {
                self.nodes[root as usize].right = self.rotated_right(right);
            }
            return self.rotated_left(root);
        }
        self.refresh(root);
        root
    }

    fn rotated_left(&mut self, root: NodeId) -> NodeId {
        let right = self.node(root).right;
        self.nodes[root as usize].right = self.node(right).left;
        self.nodes[right as usize].left = root;
        self.refresh(root);
        self.refresh(right);
        right
    }

    fn rotated_right(&mut self, root: NodeId) -> NodeId {
        let left = self.node(root).left;
        self.nodes[root as usize].left = self.node(left).right;
        self.nodes[left as usize].right = root;
        self.refresh(root);
        self.refresh(left);
        left
    }

    /// Computes a node's height and `last` from its children.
    fn refresh(&mut self, root: NodeId) {
        let &IntervalNode { left, right, .. } = self.node(root);
        let height = 1 + self.node(left).height.max(self.node(right).height);
        let mut last = root;
        for side in [left, right].into_iter().filter(|side| *side != NONE) {
            let other = self.node(side).last;
            if self.node(last).interval.cmp_by_upper(&self.node(other).interval) == Ordering::Less {
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

    const MARK: FilterMark = FilterMark { certain: false, shared: false };

    fn bound() -> impl Strategy<Value = Option<Bound>> {
        let text = |letter: u8| IndexKey::of_text(&char::from(b'a' + letter).to_string());
        prop_oneof![
            1 => Just(None),
            6 => (0..26_u8, any::<bool>()).prop_map(move |(letter, inclusive)| Some(Bound { key: text(letter), inclusive })),
        ]
    }

    impl IntervalTree {
        /// Checks the invariant. Returns the height; adds the subtree's nodes to `all`, in order.
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
            assert!(!node.filters.is_empty());
            let ends_last = |other: &NodeId| {
                self.node(*other).interval.cmp_by_upper(&self.node(node.last).interval) != Ordering::Greater
            };
            assert!(all[begun..].contains(&node.last) && all[begun..].iter().all(ends_last));
            node.height
        }
    }

    proptest! {
        #[test]
        fn random_inserts_and_removals_keep_the_tree_balanced_and_searches_exact(
            steps in proptest::collection::vec((bound(), bound(), any::<bool>(), any::<prop::sample::Index>()), 0..200),
        ) {
            let (mut intervals, mut model) = (IntervalTree::default(), BTreeMap::new());
            for (filter, (lower, upper, removes, which)) in (0_u64..).zip(steps) {
                if removes && !model.is_empty() {
                    let filter = *model.keys().nth(which.index(model.len())).unwrap();
                    let (id, _) = model.remove(&filter).unwrap();
                    intervals.remove(id, filter);
                } else {
                    let interval = KeyInterval { lower, upper };
                    let id = intervals.insert(interval.clone(), filter, MARK).unwrap();
                    prop_assert_eq!(intervals.insert(interval.clone(), filter, MARK), None);
                    model.insert(filter, (id, interval));
                }
                let mut all = Vec::new();
                intervals.check(intervals.root, &mut all);
                let in_order = |pair: &[NodeId]| {
                    intervals.node(pair[0]).interval.cmp_by_bounds(&intervals.node(pair[1]).interval) == Ordering::Less
                };
                prop_assert!(all.windows(2).all(in_order));
                prop_assert_eq!(all.len() + intervals.free.len() + 1, intervals.nodes.len());
                prop_assert_eq!(intervals.is_empty(), model.is_empty());
            }
            for letter in 'a'..='z' {
                let key = IndexKey::of_text(&letter.to_string());
                let mut found = Vec::new();
                intervals.containing(&key, &mut |filters| filters.for_each(|filter, _| found.push(filter)));
                found.sort_unstable();
                let within = |(_, interval): &(NodeId, KeyInterval)| interval.lower_admits(&key) && interval.upper_admits(&key);
                let expected: Vec<_> = model.iter().filter(|(_, entry)| within(entry)).map(|(filter, _)| *filter).collect();
                prop_assert_eq!(found, expected, "at {}", letter);
            }
        }
    }
}
