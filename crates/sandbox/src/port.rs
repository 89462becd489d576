//! Free ports on loopback.
//!
//! Never one of the ephemeral range: while a server is down, a client that keeps trying its port could be given that
//! very port as its own, connect to itself, and keep the server from coming back.
//!
//! And never one that another process was given: a server that is down, or not up yet, keeps its
//! port. A process holds
//! an abstract Unix socket for each of its ports; like the ports, those names belong to the network
//! namespace, and the
//! kernel releases them when the process ends.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, mem};

const LOWEST: u16 = 10_000;
const PROBES: u32 = 100;

/// Returns a port of 127.0.0.1 and ::1 that is free, outside the ephemeral range, and that no other
/// call returns, in any
/// process, for as long as this process lives. A program that doesn't ask here may still take it.
///
/// # Panics
/// When loopback has no free port at all.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = u64::from(ephemeral_start().saturating_sub(LOWEST).max(1));
    for _ in 0..PROBES {
        let random = RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed)) % range;
        let port = LOWEST + u16::try_from(random).expect("it is below a u16's range");
        if reserve(port) && is_free(port) {
            return port;
        }
    }
    // A machine that is full below the ephemeral range: let the kernel choose.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    listener.local_addr().expect("a bound listener has an address").port()
}

/// Reserves a port for the life of this process; false if it is reserved.
fn reserve(port: u16) -> bool {
    let name = SocketAddr::from_abstract_name(format!("forebay-port-{port}")).expect("it is a short name");
    UnixListener::bind_addr(&name).map(mem::forget).is_ok()
}

/// A machine without IPv6 has nobody on ::1 either.
fn is_free(port: u16) -> bool {
    let taken = |error: io::Error| error.kind() == io::ErrorKind::AddrInUse;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && !TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_err_and(taken)
}

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
