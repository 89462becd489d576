//! Fault-injecting TCP proxy: the handle that tests use, and the state of the proxy's tasks.
//!
//! Invariant: no byte is forwarded that the current faults forbid.
//! Enforced by: one mutex guards the sockets and the faults. A task locks it to forward bytes,
//! without waiting for a socket. A control function locks it to change faults or to close sockets.
//! Out of scope: when a byte may be forwarded (`lane.rs`), forwarding (`connection.rs`).

mod connection;
mod lane;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_sandbox::free_port;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::connection::{ForwardResult, ProxiedConnection};
use self::lane::DirectionFaults;

const BIND_TRIES: u32 = 10;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both directions.
    Both,
}

impl Direction {
    /// Returns the indexes of the lanes: 0 to the server, 1 to the client.
    fn lanes(self) -> &'static [usize] {
        match self {
            Direction::ToServer => &[0],
            Direction::ToClient => &[1],
            Direction::Both => &[0, 1],
        }
    }
}

/// Fault-injecting TCP proxy on 127.0.0.1.
///
/// A fault applies once its function has returned. It applies to every connection that a client had
/// opened by then, accepted or not, and to later ones unless stated otherwise. Each direction of a
/// connection buffers at most 256 KiB, then stops reading. Dropping the proxy closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<ProxyShared>,
}

/// State shared by the handle and the tasks of a proxy.
#[derive(Debug)]
struct ProxyShared {
    /// Number of connections accepted since the start.
    accepted: watch::Sender<u64>,
    runtime: Handle,
    /// Std's mutex, because it is poisoned: if a task of the proxy panics under the lock, the next
    /// call of the test panics too, instead of waiting for bytes that no task forwards.
    state: Mutex<State>,
}

/// Sockets and faults of a proxy.
#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// None while the proxy refuses connections.
    listener: Option<TcpListener>,
    /// Waker of the task that accepts connections.
    acceptor: Option<Waker>,
    /// Whether the handle was dropped.
    ended: bool,
    connections: BTreeMap<u64, ProxiedConnection>,
    /// By lane; see [`Direction::lanes`].
    faults: [DirectionFaults; 2],
    /// By lane.
    forwarded_bytes: [u64; 2],
}

/// How a connection is closed.
#[derive(Clone, Copy, Debug)]
enum CloseKind {
    Fin,
    Rst,
}

impl Proxy {
    /// Listens on a free port and forwards every connection to `upstream`.
    ///
    /// # Panics
    /// Panics outside a tokio runtime, or if loopback has no free port.
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener =
            (0..BIND_TRIES).find_map(|_| listen(free_port()).ok()).expect("loopback has a free port");
        let addr = listener.local_addr().expect("a bound listener has an address");
        let state = Mutex::new(State {
            upstream,
            listener: Some(listener),
            acceptor: None,
            ended: false,
            connections: BTreeMap::new(),
            faults: <[DirectionFaults; 2]>::default(),
            forwarded_bytes: [0; 2],
        });
        let (accepted, _) = watch::channel(0);
        let shared = Arc::new(ProxyShared { accepted, runtime: Handle::current(), state });
        let acceptor = Arc::clone(&shared);
        tokio::spawn(async move { poll_fn(|cx| acceptor.poll_accept(cx)).await });
        Proxy { addr, shared }
    }

    /// Closes every connection and forwards later ones to another server, like a failover.
    pub fn fail_over_to(&self, upstream: SocketAddr) {
        self.shared.state().upstream = upstream;
        self.cut();
    }

    /// Returns the address, which never changes.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes all connections with FIN, like a server that ends. Forwarded bytes still arrive; held
    /// bytes are lost. New connections are not affected.
    pub fn cut(&self) {
        self.shared.close_all(CloseKind::Fin);
    }

    /// Closes all connections with RST, which may overtake forwarded bytes. New connections are not
    /// affected.
    pub fn reset(&self) {
        self.shared.close_all(CloseKind::Rst);
    }

    /// Ends one direction of all connections with FIN. The receiver reads the end of the stream,
    /// and the proxy discards the sender's bytes. The other direction continues. New connections
    /// are not affected.
    ///
    /// Call [`Proxy::wait_for_connections`] first: connections not yet accepted are not affected.
    pub fn half_close(&self, direction: Direction) {
        let mut state = self.shared.state();
        for connection in state.connections.values_mut() {
            for &lane in direction.lanes() {
                connection.half_close(lane);
            }
        }
        state.wake_all();
    }

    /// Stops all bytes in one direction, like a network that drops every packet. A stall of the
    /// other direction stays. Connections stay open, and new ones are accepted. FIN and RST are
    /// held back, too.
    pub fn stall(&self, direction: Direction) {
        self.change(direction, |faults| faults.stalled = true);
    }

    /// Ends the stall of one direction, and forwards the held bytes in order.
    pub fn unstall(&self, direction: Direction) {
        self.change(direction, |faults| faults.stalled = false);
    }

    /// Delays every byte by this time, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.change(Direction::Both, |faults| faults.delay = delay);
    }

    /// Limits each direction of each connection to this rate.
    ///
    /// # Panics
    /// Panics if the rate is 0; use [`Proxy::stall`].
    pub fn throttle(&self, bytes_per_second: u64) {
        let rate = NonZeroU64::new(bytes_per_second).expect("a rate above 0");
        self.change(Direction::Both, |faults| faults.rate = Some(rate));
    }

    /// Ends stalls, delay and throttle, and forwards the held bytes in order.
    pub fn resume(&self) {
        self.change(Direction::Both, |faults| {
            *faults = DirectionFaults { truncate_after: faults.truncate_after, ..DirectionFaults::default() };
        });
    }

    /// Forwards exactly this many more bytes in a direction, over all connections, then closes all
    /// connections once. With [`Direction::Both`] each direction has its own count, and the first
    /// to reach it closes all connections.
    pub fn truncate_after(&self, bytes: u64, direction: Direction) {
        if bytes == 0 {
            return self.cut();
        }
        self.change(direction, |faults| faults.truncate_after = Some(bytes));
    }

    /// Refuses new connections, like a host without a server. Open ones continue; those not yet
    /// accepted are reset.
    pub fn refuse(&self) {
        self.shared.state().listener = None;
    }

    /// Accepts new connections again, on the same port.
    ///
    /// # Panics
    /// Panics if another process listens on the port.
    pub fn accept(&self) {
        let mut state = self.shared.state();
        if state.listener.is_none() {
            let _runtime = self.shared.runtime.enter();
            state.listener = Some(listen(self.addr.port()).expect("no other process has taken the port"));
            state.acceptor.take().inspect(Waker::wake_by_ref);
        }
    }

    /// Returns the number of connections accepted since the start.
    pub fn connections(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Waits until this many connections have been accepted since the start.
    pub async fn wait_for_connections(&self, count: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        accepted.wait_for(|accepted| *accepted >= count).await.expect("the sender is held");
    }

    /// Returns the number of bytes forwarded since the start.
    pub fn forwarded_bytes(&self, direction: Direction) -> u64 {
        let state = self.shared.state();
        direction.lanes().iter().map(|lane| state.forwarded_bytes[*lane]).sum()
    }

    fn change(&self, direction: Direction, change: impl Fn(&mut DirectionFaults)) {
        let mut state = self.shared.state();
        for &lane in direction.lanes() {
            change(&mut state.faults[lane]);
        }
        state.wake_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.close_all(CloseKind::Fin);
        let mut state = self.shared.state();
        state.ended = true;
        state.listener = None;
        state.acceptor.take().inspect(Waker::wake_by_ref);
    }
}

impl ProxyShared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task of the proxy panicked")
    }

    fn close_all(&self, kind: CloseKind) {
        let mut state = self.state();
        let backlog = state.listener.as_ref().map_or(0, |listener| close_backlog(listener, kind));
        self.accepted.send_modify(|accepted| *accepted += backlog);
        state.close_all(kind);
    }

    fn poll_accept(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        loop {
            if state.ended {
                return Poll::Ready(());
            }
            let Some(listener) = &state.listener else {
                state.acceptor = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let Poll::Ready(accepted) = listener.poll_accept(cx) else {
                state.acceptor = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let (client, _) = accepted.expect("accept succeeds");
            let id = *self.accepted.borrow();
            match dial(state.upstream) {
                Ok(server) => {
                    state.connections.insert(id, ProxiedConnection::new(client, server));
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { poll_fn(|cx| shared.state().poll_connection(id, cx)).await });
                }
                Err(_) => connection::close(&SockRef::from(&client), CloseKind::Rst),
            }
            self.accepted.send_modify(|accepted| *accepted += 1);
        }
    }
}

impl State {
    fn poll_connection(&mut self, id: u64, cx: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Poll::Ready(()) };
        match connection.forward(&mut self.faults, &mut self.forwarded_bytes, cx) {
            ForwardResult::Pending => return Poll::Pending,
            ForwardResult::Truncated => {
                for faults in &mut self.faults {
                    faults.truncate_after = None;
                }
                self.close_all(CloseKind::Fin);
            }
            ForwardResult::Broken => self.close(id, CloseKind::Rst),
            ForwardResult::Finished => self.close(id, CloseKind::Fin),
        }
        Poll::Ready(())
    }

    fn close_all(&mut self, kind: CloseKind) {
        while let Some((_, connection)) = self.connections.pop_first() {
            connection.close(kind);
        }
    }

    fn close(&mut self, id: u64, kind: CloseKind) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.close(kind);
        }
    }

    fn wake_all(&mut self) {
        for connection in self.connections.values_mut() {
            connection.wake();
        }
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Starts to connect without waiting, so that faults can close the socket meanwhile. The socket
/// reports a later failure.
fn dial(upstream: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(upstream), Type::STREAM.nonblocking(), None)?;
    match socket.connect(&upstream.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => TcpStream::from_std(socket.into()),
    }
}

/// Closes the connections in the listener's backlog and returns their number.
fn close_backlog(listener: &TcpListener, kind: CloseKind) -> u64 {
    let listener = SockRef::from(listener);
    let mut closed = 0;
    while let Ok((client, _)) = listener.accept() {
        client.set_nonblocking(true).expect("a socket can be non-blocking");
        connection::close(&SockRef::from(&client), kind);
        closed += 1;
    }
    closed
}
