//! `--check`: sends requests to the service and checks its guarantees.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_admission::Admission;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ExampleError;

/// A response as received: head, then body.
struct CheckResponse {
    text: String,
}

impl CheckResponse {
    fn status(&self) -> &str {
        self.text.split(' ').nth(1).unwrap_or_default()
    }

    fn has(&self, text: &str) -> bool {
        self.text.contains(text)
    }
}

pub(crate) async fn run(server: SocketAddr, admission: &Admission) -> Result<(), ExampleError> {
    until_ready(server).await?;

    let whole = read(send(server, "ada", "t-1", "why is the sky blue").await?).await?;
    assert_eq!(whole.status(), "200", "{}", whole.text);
    assert!(whole.has("x-thread-id: t-1") && whole.has("text/event-stream"), "{}", whole.text);
    assert!(whole.has("data: {\"token\":\"sky\"}\n\n") && whole.has("data: [DONE]\n\n"), "{}", whole.text);
    wait_until_released(admission).await;

    let failed = read(send(server, "ada", "t-2", "please fail now").await?).await?;
    assert!(failed.has("event: error\ndata: {\"error\":\"ProviderError\""), "{}", failed.text);
    assert!(!failed.has("now") && !failed.has("[DONE]"), "{}", failed.text);
    wait_until_released(admission).await;

    let long = "word ".repeat(100_000);
    let mut open = Vec::new();
    for n in 0..admission.limits().per_user {
        let mut stream = send(server, "greedy", &format!("g-{n}"), &long).await?;
        stream.read_exact(&mut [0; 16]).await?; // part of the head: the stream is admitted
        open.push(stream);
    }
    let refused = read(send(server, "greedy", "g-x", "one more").await?).await?;
    assert_eq!(refused.status(), "429", "{}", refused.text);
    assert!(refused.has("Too many concurrent connections. Maximum 3 allowed."), "{}", refused.text);
    assert!(refused.has("x-thread-id: g-x") && refused.has("retry-after: "), "{}", refused.text);
    let other = read(send(server, "bob", "t-3", "hello").await?).await?;
    assert_eq!(other.status(), "200", "other users are unaffected");

    drop(open); // before the replies are complete
    wait_until_released(admission).await;
    assert_eq!(admission.statistics().total_connections, 0);
    println!("{}", serde_json::to_string(&admission.statistics())?);
    println!("all checks passed");
    Ok(())
}

/// Waits until the service admits streams. A new store grants nothing for a while.
async fn until_ready(server: SocketAddr) -> Result<(), ExampleError> {
    let begun = Instant::now();
    loop {
        let response = read(send(server, "first", "t-0", "hello").await?).await?;
        if response.status() == "200" {
            return Ok(());
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "never ready: {}", response.text);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn send(server: SocketAddr, user: &str, thread: &str, query: &str) -> Result<TcpStream, ExampleError> {
    let body = serde_json::json!({"query": query, "model": "small", "provider": "local"}).to_string();
    let head = format!(
        "POST /api/v1/stream HTTP/1.1\r\nhost: check\r\nconnection: close\r\ncontent-type: application/json\r\n\
         x-user-id: {user}\r\nx-thread-id: {thread}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(stream)
}

/// Reads until the server closes. Chunk sizes stay in the text; no searched text spans two chunks.
async fn read(mut stream: TcpStream) -> Result<CheckResponse, ExampleError> {
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut bytes)).await??;
    Ok(CheckResponse { text: String::from_utf8_lossy(&bytes).into_owned() })
}

async fn wait_until_released(admission: &Admission) {
    tokio::time::timeout(Duration::from_secs(30), admission.wait_until_empty())
        .await
        .expect("all permits are released");
}
