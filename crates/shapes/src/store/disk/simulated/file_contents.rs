//! Bytes of a simulated file: the current ones, the durable ones, and the unsynced changes.
//!
//! Invariant: without a failed sync, `durable` with all `unsynced` changes applied equals `now`.
//! Enforced by: every modification goes through `change()`.

use std::mem;

use super::rng::SimulatedRng;

/// Bytes that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// Bytes of a simulated file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileContents {
    /// Bytes that a reader sees.
    now: Vec<u8>,
    /// Bytes that survive every crash.
    durable: Vec<u8>,
    /// Changes since the last sync, in order.
    unsynced: Vec<FileChange>,
}

/// A change of a file's bytes.
#[derive(Clone, Debug)]
enum FileChange {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl FileContents {
    pub(super) fn synced(bytes: Vec<u8>) -> FileContents {
        FileContents { now: bytes.clone(), durable: bytes, unsynced: Vec::new() }
    }

    /// Returns the current bytes, as a reader sees them.
    pub(super) fn now(&self) -> &[u8] {
        &self.now
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        // An empty write changes nothing, not even the length, as on a real disk.
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

    /// Simulates a failed sync. The bytes can be read as before. Bytes that did not reach the disk
    /// are never written again, because the kernel marks their pages as clean.
    pub(super) fn fail_sync(&mut self, rng: &mut SimulatedRng) {
        self.durable = self.after_crash(rng);
        self.unsynced.clear();
    }

    /// Returns the bytes after a power failure. Each sector of an unsynced write survives or not.
    /// An unsynced append extends the file completely, in part, or not at all. Its lost sectors are
    /// zeros. An unsynced change of the length survives or not.
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

/// Splits a write at the sector boundaries of the file.
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

    /// Returns the results of crashes with many seeds.
    fn outcomes(contents: &FileContents) -> BTreeSet<Vec<u8>> {
        (0..2_000).map(|seed| contents.after_crash(&mut SimulatedRng::new(seed))).collect()
    }

    #[test]
    fn synced_bytes_survive_every_crash() {
        let mut contents = FileContents::default();
        contents.write(0, &[1; 700]);
        contents.write(100, &[2; 700]);
        contents.set_len(750);
        contents.sync();
        assert_eq!(outcomes(&contents), [contents.now().to_vec()].into());
    }

    #[test]
    fn any_combination_of_unsynced_sectors_survives_and_never_a_part_of_one() {
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
    fn of_two_unsynced_writes_to_a_sector_the_later_the_earlier_or_neither_survives() {
        let mut contents = FileContents::synced(vec![1]);
        contents.write(0, &[2]);
        contents.write(0, &[3]);
        assert_eq!(outcomes(&contents), [vec![1], vec![2], vec![3]].into());
    }

    #[test]
    fn an_unsynced_append_leaves_any_length_and_zeros_for_lost_sectors() {
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
        assert!(holes > 0, "a later sector can survive without an earlier one");
    }

    #[test]
    fn an_unsynced_truncation_survives_or_not() {
        let mut contents = FileContents::synced(vec![1; 10]);
        contents.set_len(4);
        assert_eq!(outcomes(&contents), [vec![1; 10], vec![1; 4]].into());
        contents.set_len(6);
        let cut = [1, 1, 1, 1, 0, 0].to_vec();
        assert_eq!(outcomes(&contents), [vec![1; 10], vec![1; 6], vec![1; 4], cut].into());
    }

    #[test]
    fn bytes_lost_by_a_failed_sync_are_readable_and_the_next_sync_does_not_restore_them() {
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
