//! Clients, proxies and waiting for the tests of this binary.
//!
//! No test waits for a fixed time. It waits for a state of the client or of the server, and fails
//! after [`TEST_TIMEOUT`].

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use forebay_redis::{Config, IntoConfig, ReconnectBackoff, RedisClient, State, Status, StatusStream};
use forebay_sandbox::Redis;
use forebay_testkit::Proxy;
pub(crate) use forebay_testkit::{TEST_TIMEOUT, eventually, within};

pub(crate) fn start() -> Redis {
    Redis::start().unwrap()
}

pub(crate) async fn connect(url: impl IntoConfig) -> RedisClient {
    RedisClient::connect(url).await.unwrap()
}

/// Returns a configuration that a test can change.
pub(crate) fn config(url: impl IntoConfig) -> Config {
    url.into_config().unwrap()
}

pub(crate) fn with(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}

/// Returns a configuration that reconnects after a millisecond.
pub(crate) fn fast_reconnect(url: impl IntoConfig) -> Config {
    let delay = Duration::from_millis(1);
    let backoff = ReconnectBackoff {
        quick_tries: u32::MAX - 1,
        quick_delay: delay,
        first_delay: delay,
        max_delay: delay,
    };
    with(config(url), |config| config.reconnect = Some(backoff))
}

/// Starts a proxy in front of a server and returns the URL through it.
pub(crate) fn proxied(redis: &Redis) -> (Proxy, String) {
    let proxy = Proxy::start(redis.addr());
    let url = format!("redis://{}", proxy.addr());
    (proxy, url)
}

/// Returns the status stream without the current status.
pub(crate) async fn status_from_now(client: &RedisClient) -> StatusStream {
    let mut changes = client.status_changes();
    changes.next().await;
    changes
}

pub(crate) async fn wait_for_state(changes: &mut StatusStream, state: State) -> Status {
    within(&format!("{state}"), changes.wait_for(state)).await
}

/// Waits until the connection is lost and open again.
pub(crate) async fn wait_for_reconnect(changes: &mut StatusStream) -> Status {
    wait_for_state(changes, State::Failed).await;
    wait_for_state(changes, State::Open).await
}

/// Polls a request once, which submits it, and returns it.
pub(crate) fn submitted<F: Future + Unpin>(mut future: F) -> F
where
    F::Output: Debug,
{
    let first = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "answered at once: {first:?}");
    future
}

/// Returns the number of connections with this name.
pub(crate) async fn connections_named(admin: &RedisClient, name: &str) -> usize {
    let list: String = admin.exec(("CLIENT", "LIST")).await.unwrap();
    list.lines().filter(|line| line.contains(&format!(" name={name} "))).count()
}

pub(crate) async fn client_id(client: &RedisClient) -> i64 {
    client.exec(("CLIENT", "ID")).await.unwrap()
}

/// Closes a connection on the server.
pub(crate) async fn kill_connection(admin: &RedisClient, id: i64) {
    let killed: i64 = admin.exec(("CLIENT", "KILL", "ID", id)).await.unwrap();
    assert_eq!(killed, 1);
}

/// A minimal executor without tokio.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Seeded random number generator (xorshift64*), so that failures are reproducible.
pub(crate) struct XorShift64(pub(crate) u64);

impl XorShift64 {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Returns true with probability `1 / n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next_u64().is_multiple_of(n)
    }
}

/// Collects the lines of a log.
#[derive(Clone, Default)]
pub(crate) struct LogBuffer(Arc<std::sync::Mutex<Vec<u8>>>);

impl LogBuffer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
