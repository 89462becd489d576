//! Code of callers that blocks or uses the same client: arguments and wakers. It never runs while a
//! lock of the connection is held.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use forebay_redis::{ArgWriter, RedisClient, State, ToArgs};
use tokio::runtime::Runtime;

use super::support::*;

fn two_threads() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// An argument that blocks its thread until the test releases it.
struct BlockingArg {
    entered: mpsc::SyncSender<()>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl ToArgs for BlockingArg {
    fn write(&self, out: &mut ArgWriter<'_>) {
        out.arg(b"blocked");
        self.entered.send(()).unwrap();
        self.release.lock().unwrap().recv_timeout(TEST_TIMEOUT).unwrap();
    }
}

#[test]
fn an_argument_that_blocks_stops_no_other_request() {
    let redis = start();
    let home = two_threads();
    let client = home.block_on(connect(redis.url()));
    let (entered, entries) = mpsc::sync_channel(1);
    let (free, release) = mpsc::sync_channel(1);
    let arg = BlockingArg { entered, release: Mutex::new(release) };
    thread::scope(|scope| {
        let blocked = scope.spawn(|| block_on(client.exec::<String>(("ECHO", &arg))));
        entries.recv_timeout(TEST_TIMEOUT).unwrap();
        home.block_on(within("other requests complete", async {
            for n in 0..100 {
                assert_eq!(client.exec::<u32>(("ECHO", n)).await.unwrap(), n);
            }
            let mut news = client.subscribe("news").await.unwrap();
            client.exec::<()>(("PUBLISH", "news", "good")).await.unwrap();
            assert!(news.next().await.is_some());
        }));
        // The blocked request is not submitted yet.
        home.block_on(eventually("none is open", 0, async || client.stats().open_requests));
        free.send(()).unwrap();
        assert_eq!(blocked.join().unwrap().unwrap(), "blocked");
    });
}

/// An argument that is the reply to a request of the same client.
struct NestedArg<'c>(&'c RedisClient);

impl ToArgs for NestedArg<'_> {
    fn write(&self, out: &mut ArgWriter<'_>) {
        let reply: String = block_on(self.0.exec(("INCR", "nested"))).unwrap();
        out.arg(reply.as_bytes());
    }
}

#[test]
fn an_argument_may_send_a_request_of_the_same_client() {
    let redis = start();
    let home = two_threads();
    let client = home.block_on(connect(redis.url()));
    let nested = NestedArg(&client);
    let echo: String = block_on(client.exec(("ECHO", &nested))).unwrap();
    assert_eq!(echo, "1");
    let commands = [("ECHO", &nested), ("ECHO", &nested)];
    let echoes = block_on(client.pipeline::<Vec<String>>(commands)).unwrap();
    assert_eq!(echoes, [Ok("2".to_owned()), Ok("3".to_owned())]);
    let (before, after) =
        block_on(client.transaction::<(i64, i64)>((("INCRBY", "n", &nested), ("INCRBY", "n", &nested))))
            .unwrap();
    assert_eq!((before, after), (Ok(4), Ok(9)));
    assert_eq!(client.stats().connections, 1);
}

/// A waker that uses every lock of its client when it is called and when its last clone is dropped.
struct UsingWaker {
    client: RedisClient,
    calls: AtomicU32,
    woken: mpsc::SyncSender<()>,
}

impl UsingWaker {
    fn use_client(&self) {
        drop(self.client.pushes());
        drop(self.client.status_changes());
        let _open = self.client.stats();
        let mut request = self.client.exec::<()>(("PING",));
        let mut cx = Context::from_waker(Waker::noop());
        let _submitted = pin!(&mut request).poll(&mut cx);
        // Takes the lock of the link's life: nothing happens unless the client is closed.
        let _started = pin!(self.client.reopen()).poll(&mut cx);
    }
}

impl Wake for UsingWaker {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.use_client();
        let _full = self.woken.try_send(());
    }
}

impl Drop for UsingWaker {
    fn drop(&mut self) {
        self.use_client();
    }
}

/// Polls a future with a [`UsingWaker`] until it is ready.
fn block_on_using<F: Future>(client: &RedisClient, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        // Another waker at each poll, so that the previous one is replaced and dropped.
        let (woken, wakes) = mpsc::sync_channel(1);
        let waker = Arc::new(UsingWaker { client: client.clone(), calls: AtomicU32::new(0), woken });
        for _ in 0..2 {
            let waker = Waker::from(waker.clone());
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
        }
        wakes.recv_timeout(TEST_TIMEOUT).expect("the waker is called and returns");
        assert!(waker.calls.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn a_waker_may_use_the_client() {
    let redis = start();
    let home = two_threads();
    let _inside = home.enter();
    let client = home.block_on(connect(redis.url()));
    for n in 0..10 {
        assert_eq!(block_on_using(&client, client.exec::<u32>(("ECHO", n))).unwrap(), n);
    }
    let mut news = block_on_using(&client, client.subscribe("news")).unwrap();
    let mut again = home.block_on(client.subscribe("news")).unwrap();
    thread::scope(|scope| {
        let both = [&mut news, &mut again].map(|news| {
            let (client, handle) = (&client, home.handle().clone());
            scope.spawn(move || {
                let _inside = handle.enter();
                block_on_using(client, news.next())
            })
        });
        home.block_on(client.exec::<()>(("PUBLISH", "news", "good"))).unwrap();
        for event in both {
            assert!(event.join().unwrap().is_some());
        }
    });
    let mut changes = client.status_changes();
    block_on_using(&client, changes.next());
    home.spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    // The waker opens the closed client again: when it is called or, if the change came before it
    // was registered, when it is dropped.
    while block_on_using(&client, changes.next()).generation < 2 {}
    home.block_on(eventually("it is open", State::Open, async || client.state()));
}
