//! The README's example; `tests/readme.rs` checks that both are the same.

use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody, Topic, service_fn};
use http::{HeaderValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };

    let news = Topic::new(64); // keeps 64 events for slow clients
    let topic = news.clone();
    let service = service_fn(move |_request: Request<Incoming>| {
        let mut response = Response::new(topic.subscribe());
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
        response.extensions_mut().insert(LiveBody); // served by one small task
        std::future::ready(response)
    });

    let server = HttpServer::new(listener, service, HttpServerConfig::default());
    let stats = server.stats();
    let running = tokio::spawn(server.run(shutdown)); // then drains for up to 30 s

    let mut client = TcpStream::connect(address).await?;
    client.write_all(b"GET /news HTTP/1.1\r\nhost: here\r\n\r\n").await?;
    while stats.counts().live_streams == 0 {
        tokio::task::yield_now().await;
    }
    news.publish("data: hello\n\n"); // to all open streams
    news.close();
    let mut all = String::new();
    client.read_to_string(&mut all).await?;
    assert!(all.ends_with("data: hello\n\n\r\n0\r\n\r\n"), "{all}");
    drop(client);

    stop.send(()).expect("the server runs");
    assert_eq!(running.await?.cut, 0);
    assert_eq!(stats.counts().live_completed, 1);
    Ok(())
}
