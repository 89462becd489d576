//! Direct delivery: events written by the topic are never duplicated, lost or torn.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::{
    DirectWrites, HttpServer, HttpServerConfig, Incoming, LiveBody, ServerStats, Tail, TailLagged, Topic,
    service_fn,
};
use forebay_testkit::{TestRng, seed};
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Interval, interval};

use crate::client::RawClient;
use crate::test_server::{on_both_runtimes, soon, until};

/// More than one delivery task handles.
const STREAMS: usize = 150;
const TICK: &str = ": tick\n\n";

/// Body that yields a tail's events and periodic ticks.
struct TickingBody {
    tail: Tail,
    ticks: Option<Interval>,
    polls: Arc<AtomicUsize>,
}

impl Body for TickingBody {
    type Data = Bytes;
    type Error = TailLagged;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TailLagged>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        match Pin::new(&mut self.tail).poll_frame(cx) {
            Poll::Pending => {}
            ready => return ready,
        }
        let ticks = self.ticks.as_mut();
        match ticks.map_or(Poll::Pending, |ticks| ticks.poll_tick(cx)) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(TICK.as_bytes()))))),
            Poll::Pending => Poll::Pending,
        }
    }
}

struct TopicServer {
    address: std::net::SocketAddr,
    stats: ServerStats,
    polls: Arc<AtomicUsize>,
}

/// Starts a server that runs until the test's runtime ends.
async fn serve(topic: &Topic, tick: Option<Duration>) -> TopicServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let (topic, counted) = (topic.clone(), Arc::clone(&polls));
    let service = service_fn(move |_: Request<Incoming>| {
        let writes = DirectWrites::new();
        let tail = topic.subscribe().direct(&writes);
        let body = TickingBody { tail, ticks: tick.map(interval), polls: Arc::clone(&counted) };
        std::future::ready(Response::builder().extension(LiveBody).extension(writes).body(body).unwrap())
    });
    let server = HttpServer::new(listener, service, HttpServerConfig::default());
    let stats = server.stats();
    tokio::spawn(server.run(std::future::pending()));
    TopicServer { address, stats, polls }
}

#[test]
fn waiting_streams_get_events_without_being_polled() {
    on_both_runtimes(async || {
        let topic = Topic::new(64);
        let server = serve(&topic, None).await;
        let mut clients = Vec::new();
        for _ in 0..STREAMS {
            let mut client = RawClient::ask(server.address, "GET / HTTP/1.1").await;
            client.head().await;
            clients.push(client);
        }
        topic.publish("data: 0\n\n");
        for client in &mut clients {
            assert_eq!(client.until("data: 0\n\n\r\n").await, "9\r\ndata: 0\n\n\r\n");
        }
        let polls = server.polls.load(Ordering::Relaxed);
        for event in 1..10 {
            let publishing = topic.clone();
            let text = format!("data: {event}\n\n");
            // From a thread outside the runtime, as a log's writer publishes.
            std::thread::spawn(move || publishing.publish(text)).join().unwrap();
            for client in &mut clients {
                let (got, mark) = (format!("9\r\ndata: {event}\n\n\r\n"), format!("data: {event}\n\n\r\n"));
                assert_eq!(client.until(&mark).await, got);
            }
        }
        assert_eq!(server.polls.load(Ordering::Relaxed), polls);
        // Disconnected clients don't disturb the others; the tasks themselves write the end.
        clients.truncate(STREAMS / 2);
        until("half of them closed", || topic.subscribers() == STREAMS / 2).await;
        topic.publish("data: x\n\n");
        topic.close();
        for client in &mut clients {
            assert_eq!(client.rest().await, b"9\r\ndata: x\n\n\r\n0\r\n\r\n");
        }
        until("all connections closed", || server.stats.counts().open_connections == 0).await;
        let counts = server.stats.counts();
        assert_eq!(
            (counts.live_client_closed, counts.live_completed),
            (STREAMS as u64 / 2, STREAMS as u64 / 2)
        );
    });
}

/// Events of all sizes come from another thread, ticks from the streams' tasks. Some clients read
/// at once, some after the last event, and some disconnect.
#[test]
fn events_arrive_whole_and_in_order_from_topic_and_task() {
    const EVENTS: usize = 300;
    const STREAMS: usize = 40;
    on_both_runtimes(async || {
        let seed = seed();
        eprintln!("FOREBAY_SEED={seed}");
        let mut rng = TestRng::new(seed);
        let topic = Topic::new(EVENTS);
        let server = serve(&topic, Some(Duration::from_millis(2))).await;
        let is_published = Arc::new(Semaphore::new(0));
        let mut readers = Vec::new();
        for index in 0..STREAMS {
            let is_slow = index % 5 == 0;
            let mut client = match is_slow {
                true => RawClient::connect_narrow(server.address).await,
                false => RawClient::connect(server.address).await,
            };
            client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
            client.head().await;
            let leaves_after = (index % 5 == 1).then(|| rng.below(40_000));
            let is_published = Arc::clone(&is_published);
            readers.push(tokio::spawn(async move {
                if is_slow {
                    let _permit = is_published.acquire().await;
                }
                if let Some(bytes) = leaves_after {
                    client.exactly(bytes).await;
                    client.reset();
                    return None;
                }
                Some(soon("the whole stream", client.rest_of_chunks()).await)
            }));
        }
        let events: Vec<String> = (0..EVENTS)
            .map(|event| {
                let most = if rng.percent(20) { 200_000 } else { 300 };
                format!("data: {event} {}\n\n", "x".repeat(rng.below(most)))
            })
            .collect();
        let (publishing, texts) = (topic.clone(), events.clone());
        let pauses: Vec<_> = (0..EVENTS).map(|_| rng.below(4) as u64 * 200).collect();
        tokio::task::spawn_blocking(move || {
            for (text, pause) in texts.into_iter().zip(pauses) {
                match text.len() % 2 {
                    0 => publishing.publish(text),
                    _ => publishing.publish_deferred(text.len(), 0, move || text.clone().into()),
                }
                std::thread::sleep(Duration::from_micros(pause));
            }
            publishing.close();
        })
        .await
        .unwrap();
        is_published.close();
        let all = events.concat();
        let mut complete = 0;
        for reader in readers {
            let Some(got) = reader.await.unwrap() else { continue };
            let text = String::from_utf8(got.data).unwrap().replace(TICK, "");
            assert!(got.complete && text == all, "{} of {} bytes came", text.len(), all.len());
            complete += 1;
        }
        assert_eq!(complete, STREAMS - STREAMS / 5);
        until("all connections closed", || server.stats.counts().open_connections == 0).await;
        assert_eq!(topic.subscribers(), 0);
    });
}
