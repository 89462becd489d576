//! Holds: releases held transactions when their verdicts are known, and resumes holds after a
//! restart.

use std::mem;
use std::sync::Arc;

use super::decision::FollowEffect;
use super::followed_shape::{FollowedShape, SnapshotPhase};
use super::followed_shapes::FollowedShapes;
use super::held_transaction::{HeldTransaction, UnfitChange};
use super::open_transaction::OpenTransaction;
use super::row_verdicts::RowQuestion;
use super::shape_hold::ShapeHold;
use super::table_group::TableGroup;
use crate::filter::RowVerdict;
use crate::shape::Shape;
use crate::store::record::{CommitRecord, HoldChange, MessageRange, Record, ShapeTouch, TransactionPart};

impl FollowedShapes {
    /// Returns the shapes that are held from the commit of this transaction on. Its record has
    /// them, so that nothing is shown or acknowledged beyond it.
    pub(crate) fn begin_holds(&mut self, transaction: &OpenTransaction) -> Vec<HoldChange> {
        let mut holds = Vec::new();
        for shape in &transaction.held_shapes {
            let hold = self.followed_shape(*shape).and_then(|followed| followed.hold.as_mut());
            if let Some(hold) = hold.filter(|hold| hold.recorded.is_none()) {
                hold.recorded = Some(transaction.lsn);
                holds.push(HoldChange { shape: *shape, from: transaction.lsn });
            }
        }
        holds
    }

    /// Queues the held transactions of a shape up to the first one that waits for a verdict. Does
    /// nothing if the shape has no snapshot, or resumes.
    pub(super) fn release(&mut self, shape: u64) {
        let open = self.transaction.map(|(lsn, _)| lsn);
        let message_bytes = self.message_bytes;
        let mut records = Vec::new();
        let released = match self.followed_shape(shape) {
            Some(followed) => release(followed, open, message_bytes, &mut records),
            None => return,
        };
        self.effects.extend(records.into_iter().map(FollowEffect::Log));
        if released.is_err() {
            self.delete(shape);
        }
    }

    /// Ends the holds for which nothing is held any more.
    pub(super) fn end_empty_holds(&mut self) {
        let followed = self.groups.values_mut().flatten().flat_map(TableGroup::followed_shapes);
        for followed in followed {
            let is_taken = matches!(followed.snapshot, SnapshotPhase::Taken(_));
            followed.hold.take_if(|hold| is_taken && is_over(hold));
        }
    }

    /// Adds a shape to those with undecided rows, if it has any. Rows of a shape without a snapshot
    /// wait: the snapshot may see their transaction.
    pub(super) fn ask(&mut self, shape: u64) {
        let Some(followed) = self.followed_shape(shape) else { return };
        let is_taken = matches!(followed.snapshot, SnapshotPhase::Taken(_));
        let Some(verdicts) = followed.verdicts.as_mut().filter(|_| is_taken) else { return };
        if verdicts.list() {
            self.asking.push_back(shape);
            self.effects.push(FollowEffect::Ask);
        }
    }

    /// Removes the next batch of undecided rows: rows of one shape, each one once. Shapes take
    /// turns: a shape has its next turn after all others that have undecided rows.
    pub(crate) fn take_undecided(&mut self) -> Option<(Arc<Shape>, Vec<Arc<RowQuestion>>)> {
        while let Some(shape) = self.asking.pop_front() {
            let Some(FollowedShape { shape: followed, verdicts: Some(verdicts), .. }) =
                self.followed_shape(shape)
            else {
                continue;
            };
            let (followed, questions) = (Arc::clone(followed), verdicts.take_batch());
            if !questions.is_empty() {
                return Some((followed, questions));
            }
        }
        None
    }

    /// Adds undecided rows of a batch to those that wait. Does nothing in another generation.
    pub(crate) fn ask_again(&mut self, generation: u64, shape: u64, questions: Vec<Arc<RowQuestion>>) {
        if generation == self.generation
            && let Some(FollowedShape { verdicts: Some(verdicts), .. }) = self.followed_shape(shape)
        {
            verdicts.end_batch(questions.into_iter());
            self.ask(shape);
        }
    }

    /// Sets the verdicts on the rows of a batch, and releases what waited for them. Undecided rows
    /// are asked again. Does nothing in another generation.
    pub(crate) fn decide(
        &mut self,
        generation: u64,
        shape: u64,
        questions: Vec<Arc<RowQuestion>>,
        verdicts: &[RowVerdict],
    ) {
        if generation != self.generation {
            return;
        }
        let Some(FollowedShape { verdicts: Some(known), .. }) = self.followed_shape(shape) else { return };
        let mut undecided = Vec::new();
        for (at, question) in questions.into_iter().enumerate() {
            match verdicts.get(at) {
                Some(RowVerdict::Match) => known.answer(&question, true),
                Some(RowVerdict::NoMatch) => known.answer(&question, false),
                Some(RowVerdict::Undecided) | None => undecided.push(question),
            }
        }
        known.end_batch(undecided.into_iter());
        self.release(shape);
        self.ask(shape);
    }

    /// Sets the commit up to which the stream repeats transactions for the shapes that were held
    /// when this process began to write.
    pub(crate) fn resume_holds(&mut self, last_commit: u64) {
        self.resume_to = last_commit;
    }

    /// The stream has no other commits before `lsn`: deletes the shapes whose held transactions it
    /// doesn't repeat, and releases those of the others if all are repeated.
    pub(crate) fn check_resumed(&mut self, lsn: u64) {
        for shape in self.resuming.clone() {
            let resume = self.followed_shape(shape).and_then(|followed| followed.hold.as_ref()?.resume);
            if resume.is_some_and(|resume| !resume.has_begun && resume.next < lsn) {
                self.delete_because(shape, "the replication stream doesn't repeat a held transaction");
            }
        }
        if lsn >= self.queued_to {
            self.finish_resumption();
        }
    }

    /// Ends a repeated transaction.
    pub(super) fn commit_resumed(&mut self, lsn: u64) {
        for shape in self.resuming.clone() {
            let hold = self.followed_shape(shape).and_then(|followed| followed.hold.as_mut());
            if let Some(resume) = hold.and_then(|hold| hold.resume.as_mut())
                && resume.next <= lsn
            {
                (resume.next, resume.has_begun) = (lsn + 1, true);
            }
        }
        if lsn >= self.resume_to {
            self.finish_resumption();
        }
    }

    /// Lets the resumed shapes receive the stream.
    fn finish_resumption(&mut self) {
        let resumed = mem::take(&mut self.resuming);
        if resumed.is_empty() {
            return;
        }
        // The repeated transactions may have another description of their tables. It wasn't
        // compared with the other shapes.
        self.groups.values_mut().flatten().for_each(TableGroup::clear_mappings);
        for shape in resumed {
            if let Some(hold) = self.followed_shape(shape).and_then(|followed| followed.hold.as_mut()) {
                hold.resume = None;
            }
            self.release(shape);
            self.ask(shape);
        }
    }
}

/// Releases the held transactions of a shape up to the first one that waits for a verdict. Adds
/// their records to `records`.
fn release(
    followed: &mut FollowedShape,
    open: Option<u64>,
    message_bytes: usize,
    records: &mut Vec<Record>,
) -> Result<(), UnfitChange> {
    let FollowedShape { shape, snapshot: SnapshotPhase::Taken(_), hold: slot, keys, .. } = followed else {
        return Ok(());
    };
    let Some(hold) = slot.as_mut().filter(|hold| hold.resume.is_none()) else { return Ok(()) };
    while let Some(mut held) = hold.pop_decided(open) {
        held.encode(shape, keys.as_mut(), message_bytes)?;
        // The start of the hold moves with each record, so a crash between two records loses none.
        let next = hold.first_committed(open);
        let change = hold.record(shape.id, next);
        records.extend(late_commit(shape.id, held, change));
    }
    let first = hold.first_committed(open);
    if let (Some(before), Some(change)) = (hold.recorded, hold.record(shape.id, first)) {
        // The snapshot sees the transaction from which on the shape was held.
        let part = TransactionPart { lsn: before, is_first: true, ..TransactionPart::default() };
        records.push(late_record(part, Some(change)));
    }
    slot.take_if(|hold| is_over(hold));
    Ok(())
}

/// Returns whether a hold of a shape with a snapshot is over.
fn is_over(hold: &ShapeHold) -> bool {
    hold.is_empty() && hold.resume.is_none()
}

/// Returns a record with a held transaction for one shape. Other shapes got the transaction with an
/// earlier record. `None`: it has neither messages nor a change of the hold.
fn late_commit(shape: u64, held: HeldTransaction, hold: Option<HoldChange>) -> Option<Record> {
    let mut part = TransactionPart { lsn: held.lsn, is_first: true, ..TransactionPart::default() };
    // A touch without messages would move the end of the log to an offset that no message has.
    if !held.text.is_empty() {
        let to = u32::try_from(held.text.len()).expect("held bytes are bounded");
        let ranges = vec![MessageRange { from: 0, to, last_op: held.last_op }];
        (part.touches, part.text) = (vec![ShapeTouch { shape, ranges }], held.text.into());
    } else if hold.is_none() {
        return None;
    }
    Some(late_record(part, hold))
}

fn late_record(part: TransactionPart, hold: Option<HoldChange>) -> Record {
    let holds = hold.into_iter().collect();
    Record::Commit(part, CommitRecord { end: 0, earlier: Vec::new(), holds })
}
