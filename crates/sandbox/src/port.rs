//! Free ports on loopback.
//!
//! Ports are outside the ephemeral range. Otherwise a client that retries a stopped server could
//! get the server's port as its own, connect to itself, and block the restart.
//!
//! A port belongs to one process until that process ends, even while its server is down. The
//! process holds an abstract Unix socket for each port. Like ports, those names belong to the
//! network namespace. The kernel releases them when the process ends.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, mem};

const LOWEST_PORT: u16 = 10_000;
/// Maximum number of random ports to try.
const MAX_PROBES: u32 = 100;

/// Returns a free port of 127.0.0.1 and ::1, outside the ephemeral range.
///
/// No other call, in any process, returns it while this process runs. A program that doesn't call
/// this function may still take it.
///
/// # Panics
/// Panics if loopback has no free port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = u64::from(ephemeral_start().saturating_sub(LOWEST_PORT).max(1));
    for _ in 0..MAX_PROBES {
        let random = RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed)) % range;
        let port = LOWEST_PORT + u16::try_from(random).expect("below the ephemeral range");
        if reserve(port) && is_free(port) {
            return port;
        }
    }
    // No free port was found below the ephemeral range, so the kernel chooses one.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

/// Reserves a port for the life of this process; returns false if it is already reserved.
fn reserve(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("forebay-port-{port}")).expect("a short name is valid");
    UnixListener::bind_addr(&name).map(mem::forget).is_ok()
}

/// Returns true if nothing listens on the port. Without IPv6, nothing listens on ::1.
fn is_free(port: u16) -> bool {
    let is_taken = |error: io::Error| error.kind() == io::ErrorKind::AddrInUse;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && !TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_err_and(is_taken)
}

/// Returns the first ephemeral port.
fn ephemeral_start() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_ascii_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_port_is_returned_twice() {
        let ports: HashSet<_> = (0..300).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 300);
        assert!(ports.into_iter().all(|port| !reserve(port)));
    }
}
