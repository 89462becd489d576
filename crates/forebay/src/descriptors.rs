//! File descriptors: a stream through the gate takes two.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, and says what it is now. `None`: there is none.
///
/// Shells set the soft limit low for programs that still use `select`; nothing here does.
pub fn raise_limit() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            limit.current = limit.maximum;
        }
    }
    limit.current
}
