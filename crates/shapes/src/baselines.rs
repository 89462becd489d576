//! Catalog baselines: for each table, the catalog state for which its shapes are correct.
//!
//! Invariant: all complete shapes of a table are correct for its baseline, in memory and after a
//! crash.
//! Enforced by: shapes that are incorrect for a state are deleted before the state becomes the
//! baseline. The WAL has both records in that order. A catalog file gets only baselines whose
//! records are in the WAL before the segment at which the catalog starts.
//! Bound: a table has a baseline only while it has shapes.

use std::collections::HashMap;

use crate::definition::CatalogState;

/// Baselines by table oid.
#[derive(Debug, Default)]
pub(crate) struct Baselines(HashMap<u32, Baseline>);

#[derive(Debug, Default)]
struct Baseline {
    /// Number of shapes of the table.
    shapes: usize,
    /// Id of the newest shape of the table. Ids only increase.
    newest_shape: u64,
    state: Option<CatalogState>,
    /// Newest state in the WAL. It is older than `state` while the record is queued.
    durable: Option<CatalogState>,
}

impl Baselines {
    /// Returns the baseline of a table.
    pub(crate) fn get(&self, oid: u32) -> Option<&CatalogState> {
        self.0.get(&oid)?.state.as_ref()
    }

    /// Returns the oids of the tables that have shapes.
    pub(crate) fn oids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().filter(|(_, baseline)| baseline.shapes > 0).map(|(oid, _)| *oid)
    }

    /// Returns the id of the newest shape of each table that has shapes.
    pub(crate) fn newest_shapes(&self) -> impl Iterator<Item = (u32, u64)> {
        let with_shapes = self.0.iter().filter(|(_, baseline)| baseline.shapes > 0);
        with_shapes.map(|(oid, baseline)| (*oid, baseline.newest_shape))
    }

    pub(crate) fn has_shapes(&self, oid: u32) -> bool {
        self.0.get(&oid).is_some_and(|baseline| baseline.shapes > 0)
    }

    /// Counts a new shape. If the table has no baseline, `state` becomes the baseline.
    pub(crate) fn add_shape(&mut self, oid: u32, id: u64, state: Option<&CatalogState>) {
        let baseline = self.0.entry(oid).or_default();
        baseline.shapes += 1;
        baseline.newest_shape = baseline.newest_shape.max(id);
        if baseline.state.is_none() {
            baseline.state = state.cloned();
        }
    }

    pub(crate) fn remove_shape(&mut self, oid: u32) {
        if let Some(baseline) = self.0.get_mut(&oid) {
            baseline.shapes = baseline.shapes.saturating_sub(1);
            if baseline.shapes == 0 {
                self.0.remove(&oid);
            }
        }
    }

    pub(crate) fn set(&mut self, oid: u32, state: &CatalogState) {
        self.0.entry(oid).or_default().state = Some(state.clone());
    }

    /// Stores a state whose record is in the WAL. With `is_writing`, the baseline was already set
    /// when the record was queued, and may be newer by now.
    pub(crate) fn set_durable(&mut self, oid: u32, state: &CatalogState, is_writing: bool) {
        let baseline = self.0.entry(oid).or_default();
        baseline.durable = Some(state.clone());
        if !is_writing {
            baseline.state = baseline.durable.clone();
        }
    }

    /// Loads the states of a catalog file. The shapes of that file must be counted already.
    pub(crate) fn load(&mut self, states: &[(u32, CatalogState)]) {
        states.iter().for_each(|(oid, state)| self.set_durable(*oid, state, false));
    }

    /// Returns the states to write into a catalog file. Removes tables without shapes.
    pub(crate) fn for_catalog(&mut self) -> Vec<(u32, CatalogState)> {
        self.0.retain(|_, baseline| baseline.shapes > 0);
        let durable = |(oid, baseline): (&u32, &Baseline)| Some((*oid, baseline.durable.clone()?));
        self.0.iter().filter_map(durable).collect()
    }
}
