//! Somebody else's connections, which hold what the manager wants.

use forebay_replication::reservoir::{Connect as _, PostgresClient, PostgresConnect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::Followed;

/// A session of the superuser in a database of this server.
pub(crate) async fn session(followed: &Followed<'_>, database: &str) -> PostgresClient {
    let url = format!("{}?application_name=stranger", followed.server.url(database));
    let connect = PostgresConnect::new(&url).unwrap();
    connect.connect(connect.credentials().await.unwrap()).await.unwrap()
}

/// The server's process of a session.
pub(crate) async fn backend(session: &PostgresClient) -> i32 {
    session.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Whether that process is there.
pub(crate) fn is_there(followed: &Followed<'_>, backend: i32) -> bool {
    followed.ask(&format!("SELECT pid FROM pg_stat_activity WHERE pid = {backend}")).is_some()
}

/// Streams from the slot that is followed, and acknowledges nothing, until the answer is dropped.
pub(crate) async fn occupy(followed: &Followed<'_>) -> TcpStream {
    let mut socket = TcpStream::connect(followed.server.addr()).await.unwrap();
    let settings = format!("user\0postgres\0database\0{}\0replication\0database\0\0", followed.database);
    send(&mut socket, None, &[&196_608_u32.to_be_bytes(), settings.as_bytes()].concat()).await;
    until(&mut socket, b'Z').await;
    let command = format!(
        "START_REPLICATION SLOT \"{}\" LOGICAL 0/0 (proto_version '1', publication_names '\"forebay\"')\0",
        followed.slot
    );
    send(&mut socket, Some(b'Q'), command.as_bytes()).await;
    until(&mut socket, b'W').await;
    socket
}

async fn send(socket: &mut TcpStream, tag: Option<u8>, body: &[u8]) {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    let message: Vec<u8> = tag.into_iter().chain(length).chain(body.iter().copied()).collect();
    socket.write_all(&message).await.unwrap();
}

/// Reads messages up to one of a kind.
async fn until(socket: &mut TcpStream, wanted: u8) {
    loop {
        let tag = socket.read_u8().await.unwrap();
        let mut body = vec![0; socket.read_u32().await.unwrap() as usize - 4];
        socket.read_exact(&mut body).await.unwrap();
        assert_ne!(tag, b'E', "{}", String::from_utf8_lossy(&body));
        if tag == wanted {
            return;
        }
    }
}
