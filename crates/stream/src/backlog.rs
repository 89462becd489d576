//! Closing a listener without losing connections that clients have made.
//!
//! A client's connection is complete when the kernel has put it into the listener's backlog, before anything accepts it. Closing
//! the listener resets what is there. So handshakes that haven't begun are held off first, those under way get [`SETTLING`] to
//! complete, and all that is in the backlog is accepted before the close.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// For handshakes under way: a round trip or two. A client whose SYN comes within it is refused when it sends the SYN again.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const SETTLING: Duration = Duration::from_millis(100);
/// Maximum connections accepted after that, in case handshakes can't be held off.
const MAX_BACKLOG: usize = 65_536;

/// Closes the listener; gives every connection of its backlog to `start` first.
pub(crate) async fn accept_rest(listener: TcpListener, mut start: impl FnMut(TcpStream, SocketAddr)) {
    match hold_off_handshakes(&listener) {
        Ok(()) => {
            let accepting = async {
                while let Ok((stream, peer)) = listener.accept().await {
                    start(stream, peer);
                }
            };
            let _ = timeout(SETTLING, accepting).await;
        }
        Err(error) => tracing::debug!(%error, "handshakes are not held off"),
    }
    // The kernel is asked directly: the runtime may not have heard yet of what is there.
    let Ok(listener) = listener.into_std() else { return };
    let_handshakes_begin(&listener);
    for _ in 0..MAX_BACKLOG {
        match listener.accept() {
            Ok((stream, peer)) => {
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                stream.into_iter().for_each(|stream| start(stream, peer));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => return, // it is empty, or there is no descriptor for more
        }
    }
}

/// Errors that `accept` reports for the connection that it would have returned.
pub(crate) fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Has the kernel drop each SYN. Established connections, and those that complete now, have none.
#[cfg(target_os = "linux")]
fn hold_off_handshakes(listener: &TcpListener) -> io::Result<()> {
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
fn hold_off_handshakes(_: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The filter is the socket's, which another process may share and go on with.
#[cfg(target_os = "linux")]
fn let_handshakes_begin(listener: &std::net::TcpListener) {
    // Without a filter there is nothing to detach.
    let _none = socket2::SockRef::from(listener).detach_filter();
}

#[cfg(not(target_os = "linux"))]
fn let_handshakes_begin(_: &std::net::TcpListener) {}

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
        accept_rest(listener, |stream, peer| accepted.push((stream, peer))).await;
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
        accept_rest(TcpListener::from_std(listener).unwrap(), |_, _| panic!("nobody has connected")).await;
        let address = shared.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), shared.accept());
        assert_eq!(client.unwrap().local_addr().unwrap(), accepted.unwrap().1);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn while_handshakes_are_held_off_connections_go_on_and_none_begins() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).await.unwrap();
        hold_off_handshakes(&listener).unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        before.write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        accepted.read_exact(&mut heard).await.unwrap();
        accepted.write_all(&heard).await.unwrap();
        before.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
        let after = timeout(Duration::from_millis(200), TcpStream::connect(address)).await;
        assert!(after.is_err(), "a handshake began: {after:?}");
    }

    #[test]
    fn an_error_of_one_connection_is_no_reason_to_pause() {
        assert!(is_of_one_connection(&io::ErrorKind::ConnectionAborted.into()));
        assert!(!is_of_one_connection(&io::Error::from_raw_os_error(24)), "no descriptor is free");
    }
}
