//! The proxy: what tests hold, and the state that its tasks share.
//!
//! Invariant: between taking the lock and releasing it, no byte moves that the faults in force forbid.
//! Kept by: sockets live inside the lock; a task takes it to move bytes, without waiting, and a control call takes it to
//! change the faults or to close sockets.
//! Not here: when a byte may pass (`lane.rs`), moving bytes (`connection.rs`).

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

use self::connection::{Connection, Pumped};
use self::lane::Faults;

const BIND_TRIES: u32 = 10;

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both ways.
    Both,
}

impl Direction {
    /// Indexes of the lanes; a connection's two lanes are in this order.
    fn lanes(self) -> &'static [usize] {
        match self {
            Direction::ToServer => &[0],
            Direction::ToClient => &[1],
            Direction::Both => &[0, 1],
        }
    }
}

/// A TCP proxy on 127.0.0.1 that fails on command.
///
/// Each call below is in force when it returns: for every connection whose connect had returned before it, accepted
/// here or not, and, unless it says otherwise, for those to come. Each direction of a connection buffers at most 256 KiB
/// beyond the kernel's buffers; then it stops reading. Dropping the proxy cuts everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    accepted: watch::Sender<u64>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    /// None while it refuses.
    listener: Option<TcpListener>,
    acceptor: Option<Waker>,
    ended: bool,
    connections: BTreeMap<u64, Connection>,
    faults: [Faults; 2],
    forwarded_bytes: [u64; 2],
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Fin,
    Rst,
}

impl Proxy {
    /// Listens on a free port and forwards every connection to `upstream`.
    ///
    /// # Panics
    /// Outside a tokio runtime, or when loopback has no free port.
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
            faults: <[Faults; 2]>::default(),
            forwarded_bytes: [0; 2],
        });
        let (accepted, _) = watch::channel(0);
        let shared = Arc::new(Shared { accepted, runtime: Handle::current(), state });
        let acceptor = Arc::clone(&shared);
        tokio::spawn(async move { poll_fn(|cx| acceptor.poll_accept(cx)).await });
        Proxy { addr, shared }
    }

    /// Cuts every connection, and forwards those to come to another server, as a failover does.
    pub fn fail_over_to(&self, upstream: SocketAddr) {
        self.shared.state().upstream = upstream;
        self.cut();
    }

    /// Where it listens; stays the same.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes all connections with FIN, as a server that ends does. What was forwarded before still arrives; what
    /// wasn't is lost. New connections are unharmed.
    pub fn cut(&self) {
        self.shared.end_all(End::Fin);
    }

    /// Closes all connections with RST, which overtakes what was forwarded. New connections are unharmed.
    pub fn reset(&self) {
        self.shared.end_all(End::Rst);
    }

    /// Ends one direction of all connections with FIN: its receiver sees the end of the stream, its sender's bytes are
    /// thrown away, and the other direction goes on. New connections are unharmed.
    ///
    /// A connection that isn't accepted yet is unharmed, too: [`Proxy::wait_for_connections`] first.
    pub fn half_close(&self, direction: Direction) {
        let mut state = self.shared.state();
        for connection in state.connections.values_mut() {
            for &lane in direction.lanes() {
                connection.half_close(lane);
            }
        }
        state.wake_all();
    }

    /// Lets nothing pass in one direction, as a network that drops every packet would; adds to earlier stalls.
    /// Connections stay open, and new ones are accepted. Neither FIN nor RST passes.
    pub fn stall(&self, direction: Direction) {
        self.change(direction, |faults| faults.stalled = true);
    }

    /// Lifts the stall of one direction, and nothing else: from what was held back on, in order.
    pub fn unstall(&self, direction: Direction) {
        self.change(direction, |faults| faults.stalled = false);
    }

    /// Lets every byte pass that much later than it came, in order, both ways.
    pub fn delay(&self, delay: Duration) {
        self.change(Direction::Both, |faults| faults.delay = delay);
    }

    /// Lets so many bytes a second pass, for each connection and direction.
    ///
    /// # Panics
    /// At zero: that is [`Proxy::stall`].
    pub fn throttle(&self, bytes_per_second: u64) {
        let rate = NonZeroU64::new(bytes_per_second).expect("a throttled direction still moves");
        self.change(Direction::Both, |faults| faults.rate = Some(rate));
    }

    /// Lifts stalls, delay and throttle: everything flows freely, in order, from what was held back on.
    pub fn resume(&self) {
        self.change(Direction::Both, |faults| {
            *faults = Faults { truncate_after: faults.truncate_after, ..Faults::default() };
        });
    }

    /// Forwards exactly so many more bytes in a direction, counted over all connections, then cuts all connections,
    /// once; with [`Direction::Both`] each direction counts for itself, and the first to get there cuts.
    pub fn truncate_after(&self, bytes: u64, direction: Direction) {
        if bytes == 0 {
            return self.cut();
        }
        self.change(direction, |faults| faults.truncate_after = Some(bytes));
    }

    /// Refuses new connections, as a host without a server does. Open ones go on; those not accepted yet are reset.
    pub fn refuse(&self) {
        self.shared.state().listener = None;
    }

    /// Accepts new connections again, on the same port.
    ///
    /// # Panics
    /// When somebody else listens there by now.
    pub fn accept(&self) {
        let mut state = self.shared.state();
        if state.listener.is_none() {
            let _runtime = self.shared.runtime.enter();
            state.listener = Some(listen(self.addr.port()).expect("the port is still ours"));
            state.acceptor.take().inspect(Waker::wake_by_ref);
        }
    }

    /// How many connections were accepted, in all.
    pub fn connections(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Returns when so many connections were accepted, in all.
    pub async fn wait_for_connections(&self, count: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        accepted.wait_for(|accepted| *accepted >= count).await.expect("we hold the sender");
    }

    /// How many bytes were forwarded, in all.
    pub fn forwarded_bytes(&self, direction: Direction) -> u64 {
        let state = self.shared.state();
        direction.lanes().iter().map(|lane| state.forwarded_bytes[*lane]).sum()
    }

    fn change(&self, direction: Direction, change: impl Fn(&mut Faults)) {
        let mut state = self.shared.state();
        for &lane in direction.lanes() {
            change(&mut state.faults[lane]);
        }
        state.wake_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.end_all(End::Fin);
        let mut state = self.shared.state();
        state.ended = true;
        state.listener = None;
        state.acceptor.take().inspect(Waker::wake_by_ref);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task of the proxy panicked")
    }

    fn end_all(&self, end: End) {
        let mut state = self.state();
        let backlog = state.listener.as_ref().map_or(0, |listener| end_backlog(listener, end));
        self.accepted.send_modify(|accepted| *accepted += backlog);
        state.end_all(end);
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
            let (client, _) = accepted.expect("the system has room for a connection");
            let id = *self.accepted.borrow();
            match dial(state.upstream) {
                Ok(server) => {
                    state.connections.insert(id, Connection::new(client, server));
                    let shared = Arc::clone(self);
                    tokio::spawn(async move { poll_fn(|cx| shared.state().poll_connection(id, cx)).await });
                }
                Err(_) => connection::close(&SockRef::from(&client), End::Rst),
            }
            self.accepted.send_modify(|accepted| *accepted += 1);
        }
    }
}

impl State {
    fn poll_connection(&mut self, id: u64, cx: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Poll::Ready(()) };
        match connection.pump(&mut self.faults, &mut self.forwarded_bytes, cx) {
            Pumped::Waits => return Poll::Pending,
            Pumped::Truncated => {
                for faults in &mut self.faults {
                    faults.truncate_after = None;
                }
                self.end_all(End::Fin);
            }
            Pumped::Broken => self.end(id, End::Rst),
            Pumped::Finished => self.end(id, End::Fin),
        }
        Poll::Ready(())
    }

    fn end_all(&mut self, end: End) {
        while let Some((_, connection)) = self.connections.pop_first() {
            connection.end(end);
        }
    }

    fn end(&mut self, id: u64, end: End) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.end(end);
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

/// Starts to connect. A failure that comes later shows as an error of the socket; until then it is a connection like any
/// other, which the faults can end.
fn dial(upstream: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(upstream), Type::STREAM.nonblocking(), None)?;
    match socket.connect(&upstream.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => TcpStream::from_std(socket.into()),
    }
}

/// Ends the connections that the kernel has accepted and we haven't, and says how many.
fn end_backlog(listener: &TcpListener, end: End) -> u64 {
    let listener = SockRef::from(listener);
    let mut ended = 0;
    while let Ok((client, _)) = listener.accept() {
        client.set_nonblocking(true).expect("a socket can be switched");
        connection::close(&SockRef::from(&client), end);
        ended += 1;
    }
    ended
}
