//! Counter of search steps, for tests. Unlike durations, steps do not depend on the machine.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one step: a hash lookup, a visited tree node or a visited filter.
pub(super) fn count() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Returns the number of steps that `search` takes.
#[cfg(test)]
pub(super) fn count_during(search: impl FnOnce()) -> usize {
    STEPS.set(0);
    search();
    STEPS.get()
}
