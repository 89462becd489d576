//! Limit of open file descriptors. A stream takes one, through a gate two.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, and returns the new soft limit. `None`: unlimited.
///
/// Shells set a low soft limit for programs that use `select`. This program doesn't.
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
