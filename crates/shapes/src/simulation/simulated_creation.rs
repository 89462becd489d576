//! Creation of shapes in a store simulation.

use bytes::Bytes;

use super::simulated_database::{CLAUSES, definition, values};
use super::store_simulation::{ModelShape, StepResult, StoreSimulation};
use crate::creation::ShapeCreation;

/// Shape whose snapshot isn't complete.
pub(super) struct SimulatedCreation {
    handle: String,
    creation: ShapeCreation,
    /// Number of transactions that were sent before the shape was followed. The snapshot sees at
    /// least these.
    followed: Option<usize>,
    /// Rows of the snapshot that aren't appended yet.
    rows: Option<Vec<Bytes>>,
    is_sealed: bool,
}

impl StoreSimulation {
    pub(super) fn create(&mut self) -> StepResult {
        let (table, clause, definition) = definition(&self.model.database.tables, &mut self.rng);
        self.hold();
        // The time is constant: handles must be unique anyway.
        let made = self.store.find_or_create(definition.clone(), 5);
        self.idle()?;
        if let Ok((shape, Some(creation))) = made {
            let handle = shape.handle().to_owned();
            assert!(self.handles.insert(handle.clone()), "handle {handle} was used before");
            let (seen, rows) = (0, Vec::new());
            let (is_complete, is_deletion_requested, read) = (false, false, 0);
            let expected = ModelShape {
                table,
                clause,
                definition,
                seen,
                rows,
                is_complete,
                is_deletion_requested,
                read,
            };
            self.model.shapes.insert(handle.clone(), expected);
            self.creations.push(SimulatedCreation {
                handle,
                creation,
                followed: None,
                rows: None,
                is_sealed: false,
            });
        }
        Ok(())
    }

    /// Takes the next step of a random creation.
    pub(super) fn advance_creation(&mut self) -> StepResult {
        if self.creations.is_empty() {
            return Ok(());
        }
        let at = self.rng.between(0, self.creations.len() - 1);
        let mut pending = self.creations.swap_remove(at);
        self.hold();
        if self.rng.between(0, 29) == 0 {
            drop(pending);
            return self.idle();
        }
        match (pending.followed, &mut pending.rows) {
            (None, _) => {
                pending.creation.follow();
                pending.followed = Some(self.model.sent);
            }
            (Some(sent), None) => {
                if !self.take_snapshot(&mut pending, sent) {
                    drop(pending);
                    return self.idle();
                }
            }
            (_, Some(rows)) if !rows.is_empty() => {
                let some: Vec<_> = rows.drain(..self.rng.between(1, rows.len())).collect();
                if pending.creation.rows(some.concat().into()).is_err() {
                    drop(pending);
                    return self.idle();
                }
            }
            _ if !pending.is_sealed => {
                pending.is_sealed = pending.creation.seal().is_ok();
                if !pending.is_sealed {
                    drop(pending);
                    return self.idle();
                }
            }
            // Within a transaction, the shape can't be settled.
            _ if self.stream.1 > 0 => {}
            _ => return self.complete(pending),
        }
        self.creations.push(pending);
        self.idle()
    }

    /// Takes the snapshot of a creation. Returns `false` if the clause fails on a row.
    fn take_snapshot(&mut self, pending: &mut SimulatedCreation, sent: usize) -> bool {
        let (database, rng) = (&self.model.database, &mut self.rng);
        let expected = self.model.shapes.get_mut(&pending.handle).expect("the shape is in the model");
        let all = database.log.len();
        expected.seen = all - rng.between(0, 2).min(all.saturating_sub(sent));
        let mut pieces = Vec::new();
        for row in database.rows_after(expected.seen, expected.table) {
            let Some(is_in) = CLAUSES[expected.clause].1(&row) else { return false };
            if is_in {
                let mut piece = Vec::new();
                pending.creation.shape().encoder().snapshot_row(&mut piece, &values(&row));
                expected.rows.extend_from_slice(&piece);
                pieces.push(Bytes::from(piece));
            }
        }
        let (snapshot, lsn) = database.snapshot(expected.seen, rng);
        assert!(
            pending.creation.snapshot_taken(&snapshot, lsn).is_in_time(),
            "the snapshot sees all earlier transactions"
        );
        pending.rows = Some(pieces);
        true
    }

    fn complete(&mut self, pending: SimulatedCreation) -> StepResult {
        self.idle()?;
        let done = self.runtime.block_on(pending.creation.complete());
        self.idle()?;
        let expected = self.model.shapes.get_mut(&pending.handle).expect("the shape is in the model");
        expected.is_complete = done.is_ok();
        Ok(())
    }
}
