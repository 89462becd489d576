//! TCP socket operations: options, reads, early responses and the lingering close.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::HttpServerConfig;

/// Maximum duration of a lingering close.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes discarded in a lingering close.
const MAX_LINGER_BYTES: usize = 256 * 1024;

/// Response to a client that didn't send a complete head in time.
pub(crate) const REQUEST_TIMEOUT_RESPONSE: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// Response to a request whose head is incomplete at the end of `drain_grace`.
pub(crate) const SHUTTING_DOWN_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-type: text/plain\r\n\
      content-length: 29\r\nconnection: close\r\n\r\nThis server is shutting down.";

/// Sets `TCP_NODELAY`, keep-alive probes and `TCP_USER_TIMEOUT`.
pub(crate) fn set_socket_options(stream: &TcpStream, config: &HttpServerConfig) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    if let Some(idle) = config.tcp_keepalive {
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(config.tcp_user_timeout)?;
    Ok(())
}

/// Reads the bytes that are available now.
///
/// A short read means that the socket is empty, so its readiness is cleared at once. Otherwise
/// hyper would read once more after each request. A FIN still makes the socket readable.
pub(crate) fn read_available(stream: &TcpStream, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    let mut short_read = None;
    let read = stream.try_io(Interest::READABLE, || {
        let count = SockRef::from(stream).recv(room)?;
        short_read = Some(count).filter(|count| (1..room.len()).contains(count));
        // `WouldBlock` makes `try_io` clear the readiness.
        if short_read.is_some() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    });
    short_read.map_or(read, Ok)
}

/// Sends a final response to an incomplete request head, then does a lingering close.
pub(crate) async fn respond_and_linger(stream: &TcpStream, response: &[u8]) {
    let _ = stream.try_write(response); // fails if the client has disconnected
    linger(stream).await;
}

/// Shuts down writes and discards input until the client closes, within time and byte limits.
///
/// Closing with unread bytes resets the connection, and the client could lose the response.
pub(crate) async fn linger(stream: &TcpStream) {
    let discard = async {
        let (mut buffer, mut total) = ([0; 1024], 0);
        while total < MAX_LINGER_BYTES && stream.readable().await.is_ok() {
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => total += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = SockRef::from(stream).shutdown(Shutdown::Write); // fails only after a disconnect
    let _ = timeout(LINGER_TIMEOUT, discard).await;
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn accepted_sockets_have_keepalive_probes_and_a_user_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        set_socket_options(&accepted, &HttpServerConfig::default()).unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
    }
}
