//! Creation of shapes in a store simulation.

use bytes::Bytes;

use super::database::{CLAUSES, definition, values};
use super::world::{Promised, Step, World};
use crate::creation::ShapeCreation;

/// Shape whose snapshot isn't complete.
pub(super) struct Filling {
    handle: String,
    creation: ShapeCreation,
    /// Number of transactions that were sent before the shape was followed. The snapshot sees at
    /// least these.
    followed: Option<usize>,
    /// Rows of the snapshot that aren't appended yet.
    rows: Option<Vec<Bytes>>,
    is_sealed: bool,
}

impl World {
    pub(super) fn create(&mut self) -> Step {
        let (table, clause, definition) = definition(&self.model.database.tables, &mut self.dice);
        self.hold();
        // The time is constant: handles must be unique anyway.
        let made = self.store.find_or_create(definition.clone(), 5);
        self.idle()?;
        if let Ok((shape, Some(creation))) = made {
            let handle = shape.handle().to_owned();
            assert!(self.handles.insert(handle.clone()), "handle {handle} was used before");
            let (seen, rows) = (0, Vec::new());
            let (is_complete, is_unwanted, read) = (false, false, 0);
            let promised = Promised { table, clause, definition, seen, rows, is_complete, is_unwanted, read };
            self.model.promised.insert(handle.clone(), promised);
            self.creations.push(Filling { handle, creation, followed: None, rows: None, is_sealed: false });
        }
        Ok(())
    }

    /// Takes the next step of a random creation.
    pub(super) fn fill(&mut self) -> Step {
        if self.creations.is_empty() {
            return Ok(());
        }
        let at = self.dice.between(0, self.creations.len() - 1);
        let mut filling = self.creations.swap_remove(at);
        self.hold();
        if self.dice.between(0, 29) == 0 {
            drop(filling);
            return self.idle();
        }
        match (filling.followed, &mut filling.rows) {
            (None, _) => {
                filling.creation.follow();
                filling.followed = Some(self.model.came);
            }
            (Some(came), None) => {
                if !self.take_snapshot(&mut filling, came) {
                    drop(filling);
                    return self.idle();
                }
            }
            (_, Some(rows)) if !rows.is_empty() => {
                let some: Vec<_> = rows.drain(..self.dice.between(1, rows.len())).collect();
                if filling.creation.rows(some.concat().into()).is_err() {
                    drop(filling);
                    return self.idle();
                }
            }
            _ if !filling.is_sealed => {
                filling.is_sealed = filling.creation.seal().is_ok();
                if !filling.is_sealed {
                    drop(filling);
                    return self.idle();
                }
            }
            // Within a transaction, the shape can't be settled.
            _ if self.stream.1 > 0 => {}
            _ => return self.complete(filling),
        }
        self.creations.push(filling);
        self.idle()
    }

    /// Takes the snapshot of a creation. Returns `false` if the clause fails on a row.
    fn take_snapshot(&mut self, filling: &mut Filling, came: usize) -> bool {
        let (database, dice) = (&self.model.database, &mut self.dice);
        let promised = self.model.promised.get_mut(&filling.handle).expect("it was promised");
        let all = database.log.len();
        promised.seen = all - dice.between(0, 2).min(all.saturating_sub(came));
        let mut pieces = Vec::new();
        for row in database.rows_after(promised.seen, promised.table) {
            let Some(is_in) = CLAUSES[promised.clause].1(&row) else { return false };
            if is_in {
                let mut piece = Vec::new();
                filling.creation.shape().layout().snapshot_row(&mut piece, &values(&row));
                promised.rows.extend_from_slice(&piece);
                pieces.push(Bytes::from(piece));
            }
        }
        let (snapshot, lsn) = database.snapshot(promised.seen, dice);
        assert!(filling.creation.begun(&snapshot, lsn), "it sees all that came before it was followed");
        filling.rows = Some(pieces);
        true
    }

    fn complete(&mut self, filling: Filling) -> Step {
        self.idle()?;
        let done = self.runtime.block_on(filling.creation.complete());
        self.idle()?;
        let promised = self.model.promised.get_mut(&filling.handle).expect("it was promised");
        promised.is_complete = done.is_ok();
        Ok(())
    }
}
