//! A file's bytes: as they read now, as they are sure to be after a crash, and what happened between the two.
//!
//! Invariant: without a failed sync, `durable` with all of `unsynced` done to it is `now`.
//! Kept by: every change goes through `change()`.

use std::mem;

use super::rng::SimulatedRng;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
pub(super) struct FileContents {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<FileChange>,
}

#[derive(Clone, Debug)]
enum FileChange {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl FileContents {
    pub(super) fn synced(bytes: Vec<u8>) -> FileContents {
        FileContents { now: bytes.clone(), durable: bytes, unsynced: Vec::new() }
    }

    /// As a reader sees them.
    pub(super) fn now(&self) -> &[u8] {
        &self.now
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        // Not even the length changes, as with a file.
        if !bytes.is_empty() {
            self.change(FileChange::Write { at, bytes: bytes.to_vec() });
        }
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.change(FileChange::Length(len));
    }

    pub(super) fn sync(&mut self) {
        for change in mem::take(&mut self.unsynced) {
            change.apply_to(&mut self.durable);
        }
    }

    /// A sync that failed: the bytes read as before, but what isn't on the disk by now never will be, since nobody
    /// remembers that it has to be written.
    pub(super) fn fail_sync(&mut self, rng: &mut SimulatedRng) {
        self.durable = self.after_crash(rng);
        self.unsynced.clear();
    }

    /// What power loss leaves. Each sector of each unsynced write is there or isn't; the length is one that it had, or
    /// lies between two of them; a sector that was never there is zeros.
    pub(super) fn after_crash(&self, rng: &mut SimulatedRng) -> Vec<u8> {
        let odds = rng.odds();
        let (mut left, mut len) = (self.durable.clone(), self.durable.len());
        for change in &self.unsynced {
            match change {
                FileChange::Write { at, bytes } => {
                    for (at, sector) in sectors(*at, bytes) {
                        if rng.survives(odds) {
                            put(&mut left, at, sector);
                        }
                    }
                    let end = at + bytes.len();
                    if end > len {
                        len = [len, rng.between(len, end), end][rng.between(0, 2)];
                    }
                }
                FileChange::Length(new) => {
                    if rng.survives(odds) {
                        left.truncate(*new);
                        len = *new;
                    }
                }
            }
        }
        left.resize(len, 0);
        left
    }

    fn change(&mut self, change: FileChange) {
        change.apply_to(&mut self.now);
        self.unsynced.push(change);
    }
}

impl FileChange {
    fn apply_to(&self, to: &mut Vec<u8>) {
        match self {
            FileChange::Write { at, bytes } => put(to, *at, bytes),
            FileChange::Length(len) => to.resize(*len, 0),
        }
    }
}

/// The parts of a write, cut where sectors of the file begin.
fn sectors(at: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let (mut at, mut rest) = (at, bytes);
    std::iter::from_fn(move || {
        let (sector, later) = rest.split_at_checked(SECTOR_BYTES - at % SECTOR_BYTES).unwrap_or((rest, &[]));
        let start = at;
        (at, rest) = (start + sector.len(), later);
        (!sector.is_empty()).then_some((start, sector))
    })
}

fn put(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if to.len() < end {
        to.resize(end, 0);
    }
    to[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What crashes with many seeds leave.
    fn outcomes(contents: &FileContents) -> BTreeSet<Vec<u8>> {
        (0..2_000).map(|seed| contents.after_crash(&mut SimulatedRng::new(seed))).collect()
    }

    #[test]
    fn what_was_synced_is_there_to_the_byte_after_every_crash() {
        let mut contents = FileContents::default();
        contents.write(0, &[1; 700]);
        contents.write(100, &[2; 700]);
        contents.set_len(750);
        contents.sync();
        assert_eq!(outcomes(&contents), [contents.now().to_vec()].into());
    }

    #[test]
    fn unsynced_sectors_are_there_in_every_combination_and_never_in_part() {
        let mut contents = FileContents::synced(vec![1; 3 * SECTOR_BYTES]);
        contents.write(0, &[2; 3 * SECTOR_BYTES]);
        let outcomes = outcomes(&contents);
        assert_eq!(outcomes.len(), 8);
        for left in outcomes {
            assert!(
                left.chunks(SECTOR_BYTES)
                    .all(|sector| sector == [1; SECTOR_BYTES] || sector == [2; SECTOR_BYTES])
            );
        }
    }

    #[test]
    fn the_later_of_two_writes_to_a_sector_wins_where_it_is_there_and_the_earlier_may_remain() {
        let mut contents = FileContents::synced(vec![1]);
        contents.write(0, &[2]);
        contents.write(0, &[3]);
        assert_eq!(outcomes(&contents), [vec![1], vec![2], vec![3]].into());
    }

    #[test]
    fn an_unsynced_append_leaves_any_length_between_and_zeros_where_it_is_missing() {
        let mut contents = FileContents::synced(vec![1; 10]);
        contents.write(10, &[2; 1_000]);
        let outcomes = outcomes(&contents);
        let lengths: BTreeSet<_> = outcomes.iter().map(Vec::len).collect();
        assert!(lengths.contains(&10) && lengths.contains(&1_010) && lengths.len() > 100, "{lengths:?}");
        let mut holes = 0;
        for left in &outcomes {
            assert!((10..=1_010).contains(&left.len()));
            assert_eq!(left[..10], [1; 10]);
            for (_, sector) in sectors(10, &left[10..]) {
                assert!(sector.iter().all(|byte| *byte == 0) || sector.iter().all(|byte| *byte == 2));
            }
            holes += usize::from(left.get(10) == Some(&0) && left.last() == Some(&2));
        }
        assert!(holes > 0, "a later sector can be there without an earlier one");
    }

    #[test]
    fn an_unsynced_cut_is_there_or_is_not() {
        let mut contents = FileContents::synced(vec![1; 10]);
        contents.set_len(4);
        assert_eq!(outcomes(&contents), [vec![1; 10], vec![1; 4]].into());
        contents.set_len(6);
        let cut = [1, 1, 1, 1, 0, 0].to_vec();
        assert_eq!(outcomes(&contents), [vec![1; 10], vec![1; 6], vec![1; 4], cut].into());
    }

    #[test]
    fn a_failed_sync_loses_bytes_that_can_still_be_read_and_that_the_next_sync_does_not_bring_back() {
        let lost = |seed| {
            let mut contents = FileContents::synced(vec![1]);
            contents.write(0, &[2]);
            contents.fail_sync(&mut SimulatedRng::new(seed));
            contents.sync();
            assert_eq!(contents.now(), [2]);
            outcomes(&contents) == [vec![1]].into()
        };
        assert!((0..20).any(lost));
        assert!(!(0..20).all(lost));
    }
}
