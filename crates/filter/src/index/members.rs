//! The shapes that one condition finds.
//!
//! Invariant: each shape is in once. Adding and removing take the logarithm of their number, looking at all of them only
//! as long as there are many.
//! Kept by: a tree. Most conditions find one shape, which is kept without any.

use std::collections::BTreeMap;

/// Shapes by their numbers.
#[derive(Debug)]
pub(super) enum Members {
    One(u64, Mark),
    Many(BTreeMap<u64, Mark>),
}

/// What is known of a shape that is found here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its clause is true of whatever finds it here.
    pub(super) certain: bool,
    /// Another condition may find it as well.
    pub(super) shared: bool,
}

impl Default for Members {
    fn default() -> Self {
        Members::Many(BTreeMap::new())
    }
}

impl Members {
    /// `false`: it was in already.
    pub(super) fn insert(&mut self, shape: u64, mark: Mark) -> bool {
        match self {
            Members::Many(all) if all.is_empty() => {
                *self = Members::One(shape, mark);
                return true;
            }
            Members::One(one, known) if *one != shape => {
                *self = Members::Many(BTreeMap::from([(*one, *known)]));
            }
            Members::One(..) | Members::Many(_) => {}
        }
        let known = match self {
            Members::One(_, known) => known,
            Members::Many(all) => match all.get_mut(&shape) {
                Some(known) => known,
                None => {
                    all.insert(shape, mark);
                    return true;
                }
            },
        };
        // It is found here in two ways: one of them makes it certain.
        known.certain |= mark.certain;
        false
    }

    pub(super) fn remove(&mut self, shape: u64) {
        match self {
            Members::One(one, _) if *one == shape => *self = Members::default(),
            Members::One(..) => {}
            Members::Many(all) => {
                all.remove(&shape);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Members::One(..) => 1,
            Members::Many(all) => all.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn each(&self, mut visit: impl FnMut(u64, Mark)) {
        match self {
            Members::One(one, mark) => visit(*one, *mark),
            Members::Many(all) => all.iter().for_each(|(shape, mark)| visit(*shape, *mark)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIED: Mark = Mark { certain: false, shared: false };

    fn all(members: &Members) -> Vec<(u64, bool)> {
        let mut all = Vec::new();
        members.each(|shape, mark| all.push((shape, mark.certain)));
        all
    }

    #[test]
    fn a_shape_is_in_once_and_certain_if_one_way_makes_it_so() {
        let mut members = Members::default();
        assert!(members.insert(7, TRIED));
        assert!(!members.insert(7, Mark { certain: true, ..TRIED }));
        assert!(members.insert(3, TRIED));
        assert!(!members.insert(7, TRIED));
        assert_eq!(all(&members), [(3, false), (7, true)]);
    }

    #[test]
    fn what_is_removed_is_gone_and_nothing_else() {
        let mut members = Members::default();
        members.remove(1);
        members.insert(1, TRIED);
        members.remove(2);
        assert_eq!(all(&members), [(1, false)]);
        members.insert(2, TRIED);
        members.remove(1);
        assert_eq!(all(&members), [(2, false)]);
        members.remove(2);
        assert!(members.is_empty() && all(&members).is_empty());
    }
}
