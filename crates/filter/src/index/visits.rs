//! Counter of search steps for tests: unlike times, steps do not depend on the machine.

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one hash lookup, one tree node or one filter.
pub(super) fn count() {
    #[cfg(test)]
    VISITS.set(VISITS.get() + 1);
}

/// Returns the number of steps that `search` takes.
#[cfg(test)]
pub(super) fn during(search: impl FnOnce()) -> usize {
    VISITS.set(0);
    search();
    VISITS.get()
}
