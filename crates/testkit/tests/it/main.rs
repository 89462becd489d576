//! Tests of every fault of the proxy, between two sockets and in front of a real Redis.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its assertion, in a helper too")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forebay_testkit::sandbox::Redis;
use forebay_testkit::{Direction, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Time without a byte that counts as silence. Too short, it could only hide a failure.
const SILENCE: Duration = Duration::from_millis(50);

/// Proxy in front of a listener.
struct ProxyFixture {
    proxy: Proxy,
    upstream: TcpListener,
}

impl ProxyFixture {
    async fn new() -> ProxyFixture {
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ProxyFixture { proxy: Proxy::start(upstream.local_addr().unwrap()), upstream }
    }

    /// Returns both ends of a new connection through the proxy.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.proxy.addr()).await.unwrap();
        let (server, _) = self.upstream.accept().await.unwrap();
        (client, server)
    }

    async fn with_connection() -> (ProxyFixture, TcpStream, TcpStream) {
        let fixture = ProxyFixture::new().await;
        let (client, server) = fixture.connect().await;
        (fixture, client, server)
    }
}

async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

async fn passes(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"hello").await.unwrap();
    assert_eq!(read(to, 5).await, b"hello");
}

async fn is_silent(stream: &mut TcpStream) {
    let read = timeout(SILENCE, stream.read_u8()).await;
    assert!(read.is_err(), "{read:?}");
}

async fn sees_end(stream: &mut TcpStream) {
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

async fn sees_reset(stream: &mut TcpStream) {
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn bytes_pass_both_ways_and_are_counted() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    passes(&mut client, &mut server).await;
    passes(&mut server, &mut client).await;
    passes(&mut server, &mut client).await;
    assert_eq!(fixture.proxy.forwarded_bytes(Direction::ToServer), 5);
    assert_eq!(fixture.proxy.forwarded_bytes(Direction::ToClient), 10);
    assert_eq!(fixture.proxy.forwarded_bytes(Direction::Both), 15);
    assert_eq!((fixture.proxy.connections(), fixture.proxy.open_connections()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_stream_arrives_whole_and_in_order() {
    const BYTES: usize = 8 << 20;
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    let sent: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client
    });
    assert!(read(&mut server, BYTES).await == expected);
    drop(writer.await.unwrap());
    sees_end(&mut server).await;
    assert_eq!(fixture.proxy.forwarded_bytes(Direction::ToServer), BYTES as u64);
}

#[tokio::test]
async fn a_fin_passes_in_its_direction_and_two_fins_end_the_connection() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    client.shutdown().await.unwrap();
    sees_end(&mut server).await;
    passes(&mut server, &mut client).await;
    server.shutdown().await.unwrap();
    sees_end(&mut client).await;
    while fixture.proxy.open_connections() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_reset_is_forwarded() {
    let (_rig, client, mut server) = ProxyFixture::with_connection().await;
    client.set_zero_linger().unwrap();
    drop(client);
    sees_reset(&mut server).await;
}

#[tokio::test]
async fn a_cut_closes_both_sides_and_not_the_next_connection() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    client.write_all(b"on its way").await.unwrap();
    fixture.proxy.cut();
    sees_end(&mut client).await;
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).await.unwrap();
    assert_eq!(fixture.proxy.open_connections(), 0);

    let (mut client, mut server) = fixture.connect().await;
    passes(&mut client, &mut server).await;
    assert_eq!(fixture.proxy.connections(), 2);
}

#[tokio::test]
async fn a_reset_reaches_both_sides() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.reset();
    sees_reset(&mut client).await;
    sees_reset(&mut server).await;
}

/// No await in between: the proxy's tasks have not run, and its accept queue holds the connections.
#[tokio::test]
async fn connections_not_yet_accepted_are_closed_too() {
    let fixture = ProxyFixture::new().await;
    let connect = || std::net::TcpStream::connect(fixture.proxy.addr()).unwrap();
    let cut = connect();
    fixture.proxy.cut();
    let reset = connect();
    fixture.proxy.reset();
    let refused = connect();
    fixture.proxy.refuse();
    assert_eq!(fixture.proxy.connections(), 2);
    let outcome = |mut stream: std::net::TcpStream| std::io::Read::read(&mut stream, &mut [0]);
    assert_eq!(outcome(cut).unwrap(), 0);
    assert_eq!(outcome(reset).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(outcome(refused).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_half_close_ends_one_direction_only() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.half_close(Direction::ToServer);
    sees_end(&mut server).await;
    passes(&mut server, &mut client).await;
    client.write_all(b"thrown away").await.unwrap();

    let (mut client, mut server) = fixture.connect().await;
    fixture.proxy.half_close(Direction::ToClient);
    sees_end(&mut client).await;
    passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_stall_holds_back_one_direction_until_it_ends() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.stall(Direction::ToClient);
    passes(&mut client, &mut server).await;
    server.write_all(b"held").await.unwrap();
    is_silent(&mut client).await;

    fixture.proxy.stall(Direction::ToServer);
    client.write_all(b"held, too").await.unwrap();
    is_silent(&mut server).await;
    assert_eq!(fixture.proxy.forwarded_bytes(Direction::Both), 5);

    fixture.proxy.unstall(Direction::ToClient);
    assert_eq!(read(&mut client, 4).await, b"held");
    is_silent(&mut server).await;
    fixture.proxy.resume();
    assert_eq!(read(&mut server, 9).await, b"held, too");
}

#[tokio::test]
async fn a_stall_holds_back_new_connections_and_the_end_of_a_stream() {
    let fixture = ProxyFixture::new().await;
    fixture.proxy.stall(Direction::Both);
    let (mut client, mut server) = fixture.connect().await;
    client.write_all(b"last").await.unwrap();
    client.shutdown().await.unwrap();
    is_silent(&mut server).await;
    fixture.proxy.resume();
    assert_eq!(read(&mut server, 4).await, b"last");
    sees_end(&mut server).await;
}

#[tokio::test]
async fn a_stalled_connection_can_be_cut() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.stall(Direction::Both);
    fixture.proxy.cut();
    sees_end(&mut client).await;
    sees_end(&mut server).await;
}

#[tokio::test]
async fn a_delay_keeps_the_order_and_the_time() {
    const DELAY: Duration = Duration::from_millis(80);
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.delay(DELAY);
    let started_at = Instant::now();
    for byte in 0..100 {
        client.write_u8(byte).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(read(&mut server, 100).await, (0..100).collect::<Vec<u8>>());
    assert!(started_at.elapsed() >= DELAY, "{:?}", started_at.elapsed());

    fixture.proxy.delay(Duration::from_secs(3600));
    client.write_all(b"in an hour").await.unwrap();
    is_silent(&mut server).await;
    fixture.proxy.resume();
    assert_eq!(read(&mut server, 10).await, b"in an hour");
}

#[tokio::test]
async fn a_throttle_bounds_the_rate() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.throttle(10_000);
    let started_at = Instant::now();
    server.write_all(&[7; 2_000]).await.unwrap();
    assert_eq!(read(&mut client, 2_000).await, [7; 2_000]);
    // All bytes but the last hundred take their time.
    assert!(started_at.elapsed() >= Duration::from_millis(190), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn a_truncation_forwards_exactly_the_given_bytes() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    passes(&mut server, &mut client).await;
    fixture.proxy.truncate_after(7, Direction::ToClient);
    passes(&mut client, &mut server).await;
    server.write_all(b"0123456789").await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"0123456");
    sees_end(&mut server).await;

    let (mut client, mut server) = fixture.connect().await;
    passes(&mut server, &mut client).await;
    fixture.proxy.truncate_after(0, Direction::ToServer);
    sees_end(&mut server).await;
}

#[tokio::test]
async fn a_refusing_proxy_keeps_its_open_connections_and_its_port() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    fixture.proxy.refuse();
    let error = TcpStream::connect(fixture.proxy.addr()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    passes(&mut client, &mut server).await;

    fixture.proxy.accept();
    fixture.proxy.accept();
    let (mut client, mut server) = fixture.connect().await;
    passes(&mut client, &mut server).await;
}

#[tokio::test]
async fn without_an_upstream_a_connection_is_reset() {
    let unused = SocketAddr::from(([127, 0, 0, 1], forebay_testkit::sandbox::free_port()));
    let proxy = Proxy::start(unused);
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    sees_reset(&mut client).await;
}

#[tokio::test]
async fn connections_can_be_waited_for() {
    let fixture = ProxyFixture::new().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(TcpStream::connect(fixture.proxy.addr()).await.unwrap());
    }
    fixture.proxy.wait_for_connections(3).await;
    assert_eq!(fixture.proxy.connections(), 3);
}

#[tokio::test]
async fn dropping_the_proxy_closes_everything() {
    let (fixture, mut client, mut server) = ProxyFixture::with_connection().await;
    let addr = fixture.proxy.addr();
    drop(fixture.proxy);
    sees_end(&mut client).await;
    sees_end(&mut server).await;
    assert_eq!(TcpStream::connect(addr).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_reply_of_a_real_redis_can_be_truncated() {
    let redis = Redis::shared();
    let proxy = Proxy::start(redis.addr());
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(read(&mut client, 7).await, b"+PONG\r\n");

    proxy.truncate_after(4, Direction::ToClient);
    client.write_all(b"ECHO hello\r\n").await.unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).await.unwrap();
    assert_eq!(reply, b"$5\r\n");
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(read(&mut client, 7).await, b"+PONG\r\n");
}
