//! A thousand streams of one topic.

use std::convert::Infallible;

use bytes::Bytes;
use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody, Topic, service_fn};
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::client::RawClient;
use crate::test_server::{on_both_runtimes, soon, until};

const STREAMS: usize = 1_000;

#[test]
fn a_thousand_streams_get_every_event_and_leave_nothing_behind() {
    on_both_runtimes(async || {
        let topic = Topic::new(16);
        let (address, stats, _shutdown) = serve(topic.clone()).await;
        let mut clients = Vec::new();
        for _ in 0..STREAMS {
            clients.push(RawClient::ask(address, "GET / HTTP/1.1").await);
        }
        for client in &mut clients {
            client.head().await;
        }
        assert_eq!((topic.subscribers(), stats.counts().live_streams), (STREAMS, STREAMS as u64));
        for event in 0..5 {
            topic.publish(format!("data: {event}\n\n"));
        }
        for client in &mut clients {
            let got = client.until("data: 4\n\n\r\n").await;
            let all: String = (0..5).map(|event| format!("9\r\ndata: {event}\n\n\r\n")).collect();
            assert_eq!(got, all);
        }
        clients.truncate(STREAMS / 2);
        until("half of them closed", || topic.subscribers() == STREAMS / 2).await;
        topic.close();
        for client in &mut clients {
            assert_eq!(client.rest().await, b"0\r\n\r\n");
        }
        drop(clients);
        until("all connections closed", || stats.counts().open_connections == 0).await;
        let counts = stats.counts();
        assert_eq!((counts.live_streams, topic.subscribers()), (0, 0));
        assert_eq!(
            (counts.live_client_closed, counts.live_completed),
            (STREAMS as u64 / 2, STREAMS as u64 / 2)
        );
    });
}

#[test]
fn a_client_that_falls_behind_its_topic_sees_a_broken_stream() {
    on_both_runtimes(async || {
        let topic = Topic::new(4);
        let (address, stats, _shutdown) = serve(topic.clone()).await;
        let mut slow = RawClient::connect_narrow(address).await;
        slow.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let event = Bytes::from(vec![b'x'; 1 << 20]);
        until("the subscription", || topic.subscribers() == 1).await;
        // Enough to fill the socket and to evict events from the ring.
        for _ in 0..32 {
            topic.publish(event.clone());
            tokio::task::yield_now().await;
        }
        slow.head().await;
        assert!(!soon("the end", slow.rest_of_chunks()).await.complete);
        until("the count", || stats.counts().live_failed == 1).await;
        assert_eq!(topic.subscribers(), 0);
    });
}

async fn serve(
    topic: Topic,
) -> (std::net::SocketAddr, forebay_stream::ServerStats, oneshot::Sender<Infallible>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = service_fn(move |_: Request<Incoming>| {
        let response = Response::builder().extension(LiveBody).body(topic.subscribe()).unwrap();
        std::future::ready(response)
    });
    let server = HttpServer::new(listener, service, HttpServerConfig::default());
    let stats = server.stats();
    let (shutdown, stopped) = oneshot::channel();
    tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    (address, stats, shutdown)
}
