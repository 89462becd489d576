//! How much a search looks at: what tests count, since times would depend on the machine.

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One look-up, one node or one shape more.
pub(super) fn count() {
    #[cfg(test)]
    VISITS.set(VISITS.get() + 1);
}

/// What the search looks at.
#[cfg(test)]
pub(super) fn of(search: impl FnOnce()) -> usize {
    VISITS.set(0);
    search();
    VISITS.get()
}
