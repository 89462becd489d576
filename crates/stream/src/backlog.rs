//! Listener close that loses no established connection.
//!
//! The kernel completes handshakes and queues connections before the server accepts them. Closing
//! the listener resets the queued ones. So new handshakes are blocked first, handshakes in progress
//! get [`HANDSHAKE_TIMEOUT`] to complete, and the queue is accepted before the close.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Time for handshakes in progress: about two round trips. A client whose SYN was dropped in that
/// time is refused when it retransmits the SYN.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum connections accepted afterwards, in case handshakes can't be blocked.
const MAX_BACKLOG: usize = 65_536;

/// Passes every connection of the backlog to `start`, then closes the listener.
pub(crate) async fn drain_backlog(listener: TcpListener, mut start: impl FnMut(TcpStream, SocketAddr)) {
    match block_handshakes(&listener) {
        Ok(()) => {
            let accepting = async {
                while let Ok((stream, peer)) = listener.accept().await {
                    start(stream, peer);
                }
            };
            let _ = timeout(HANDSHAKE_TIMEOUT, accepting).await;
        }
        Err(error) => tracing::debug!(%error, "SYN filter not attached"),
    }
    // `accept` is called directly, since the reactor may not have seen the newest connections.
    let Ok(listener) = listener.into_std() else { return };
    unblock_handshakes(&listener);
    for _ in 0..MAX_BACKLOG {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                stream.into_iter().for_each(|stream| start(stream, peer));
            }
            Err(error) if is_per_connection(&error) => {}
            Err(_) => return, // the backlog is empty, or no file descriptor is free
        }
    }
}

/// Returns true for errors that `accept` reports about one connection, not about the listener.
pub(crate) fn is_per_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Attaches a socket filter that drops each SYN. Established and completing connections pass.
#[cfg(target_os = "linux")]
fn block_handshakes(listener: &TcpListener) -> io::Result<()> {
    use socket2::{SockFilter, SockRef};
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const TCP_FLAGS_AT: u32 = 13;
    const SYN: u32 = 0x02;
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, TCP_FLAGS_AT),
        SockFilter::new(JUMP_IF_SET, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),        // drop
        SockFilter::new(RETURN, 0, 0, u32::MAX), // keep all bytes
    ])
}

#[cfg(not(target_os = "linux"))]
fn block_handshakes(_: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Detaches the filter: another process may share the socket and continue to accept.
#[cfg(target_os = "linux")]
fn unblock_handshakes(listener: &std::net::TcpListener) {
    // Fails only if no filter is attached.
    let _none = socket2::SockRef::from(listener).detach_filter();
}

#[cfg(not(target_os = "linux"))]
fn unblock_handshakes(_: &std::net::TcpListener) {}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn the_whole_backlog_is_accepted_before_the_listener_closes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let mut accepted = Vec::new();
        drain_backlog(listener, |stream, peer| accepted.push((stream, peer))).await;
        let peers: Vec<_> = accepted.iter().map(|(_, peer)| *peer).collect();
        assert!(clients.iter().all(|client| peers.contains(&client.local_addr().unwrap())));
        assert_eq!(accepted.len(), clients.len());
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_listener_that_another_process_shares_still_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
        let shared = TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
        drain_backlog(TcpListener::from_std(listener).unwrap(), |_, _| panic!("the backlog is empty")).await;
        let address = shared.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), shared.accept());
        assert_eq!(client.unwrap().local_addr().unwrap(), accepted.unwrap().1);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn blocked_handshakes_leave_established_connections_working() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).await.unwrap();
        block_handshakes(&listener).unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        before.write_all(b"ping").await.unwrap();
        let mut received = [0; 4];
        accepted.read_exact(&mut received).await.unwrap();
        accepted.write_all(&received).await.unwrap();
        before.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"ping");
        let after = timeout(Duration::from_millis(200), TcpStream::connect(address)).await;
        assert!(after.is_err(), "a handshake began: {after:?}");
    }

    #[test]
    fn an_error_of_one_connection_does_not_pause_accepting() {
        assert!(is_per_connection(&io::ErrorKind::ConnectionAborted.into()));
        assert!(!is_per_connection(&io::Error::from_raw_os_error(24)), "EMFILE pauses accepting");
    }
}
