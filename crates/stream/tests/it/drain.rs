//! The end of a server: what may go on, for how long, and what is cut.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::client::{Chunked, Client};
use crate::site::{ECHO, Site, on_both_runtimes, until};

#[test]
fn a_server_without_connections_ends_at_once() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        site.begin_shutdown();
        let summary = site.ended().await;
        assert_eq!((summary.open, summary.cut), (0, 0));
    });
}

#[test]
fn idle_connections_close_at_once_and_no_new_one_is_accepted() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut silent = Client::connect(site.address).await;
        let mut idle = Client::connect(site.address).await;
        idle.send(ECHO).await;
        idle.until("hello").await;
        until("both", || site.stats.counts().open_connections == 2).await;
        let address = site.address;
        site.begin_shutdown();
        assert_eq!((silent.rest().await, idle.rest().await), (vec![], vec![]));
        let summary = site.ended().await;
        assert_eq!((summary.open, summary.cut), (2, 0));
        assert!(TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn running_requests_and_streams_may_end_by_themselves() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut streaming = Client::ask(site.address, "GET /live HTTP/1.1").await;
        let mut stream = site.stream().await;
        let mut asking = Client::ask(site.address, "GET /dead HTTP/1.1").await;
        let mut request = site.stream().await;
        streaming.head().await;
        asking.head().await;
        site.begin_shutdown();
        stream.send("goes on").await;
        streaming.until("goes on\r\n").await;
        stream.end();
        request.send("this too").await;
        request.end();
        assert!(streaming.rest_of_chunks().await.complete);
        assert_eq!(asking.rest_of_chunks().await, Chunked { data: b"this too".into(), complete: true });
        drop((streaming, asking));
        let summary = site.ended().await;
        assert_eq!((summary.open, summary.cut), (2, 0));
    });
}

#[test]
fn a_request_that_is_answered_during_the_drain_may_still_stream() {
    on_both_runtimes(async || {
        let mut site = Site::default().await;
        let mut client = Client::connect(site.address).await;
        client.send("POST /live HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe").await;
        until("the request", || site.stats.counts().requests == 1).await;
        site.begin_shutdown();
        client.send("llo").await;
        let mut stream = site.stream().await;
        stream.end();
        client.head().await;
        assert!(client.rest_of_chunks().await.complete);
        assert_eq!(site.stats.counts().lean_total, 1);
    });
}

#[test]
fn what_is_left_at_the_deadline_is_cut_without_the_last_chunk() {
    on_both_runtimes(async || {
        let mut site = Site::start(|config| config.drain_timeout = Duration::from_millis(200)).await;
        let mut clients = Vec::new();
        let mut streams = Vec::new();
        for path in ["/live", "/dead"] {
            let mut client = Client::ask(site.address, &format!("GET {path} HTTP/1.1")).await;
            streams.push(site.stream().await);
            client.head().await;
            clients.push(client);
        }
        let hanging = Client::ask(site.address, "GET /hangs HTTP/1.1").await;
        streams.push(site.stream().await);
        let stats = site.stats.clone();
        site.begin_shutdown();
        let summary = site.ended().await;
        assert_eq!((summary.open, summary.cut), (3, 3));
        assert!(summary.took >= Duration::from_millis(200));
        let counts = stats.counts();
        assert_eq!((counts.open_connections, counts.lean_streams, counts.lean_cut), (0, 0, 1));
        for mut stream in streams {
            stream.dropped().await;
        }
        for mut client in clients {
            assert_eq!(client.rest().await, b"");
        }
        drop(hanging);
    });
}
