//! Connections of another client, which hold the lock, the slot or a table.

use forebay_replication::reservoir::{Connect as _, PostgresClient, PostgresConnect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::followed_database::FollowedDatabase;

/// Opens a connection of the superuser.
pub(crate) async fn connect_client(followed: &FollowedDatabase<'_>, database: &str) -> PostgresClient {
    let url = format!("{}?application_name=other_client", followed.server.url(database));
    let connect = PostgresConnect::new(&url).unwrap();
    connect.connect(connect.credentials().await.unwrap()).await.unwrap()
}

/// Returns the process id of a connection's backend.
pub(crate) async fn backend(client: &PostgresClient) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Returns whether a backend exists.
pub(crate) fn backend_exists(followed: &FollowedDatabase<'_>, backend: i32) -> bool {
    followed.query_value(&format!("SELECT pid FROM pg_stat_activity WHERE pid = {backend}")).is_some()
}

/// Streams from the manager's slot without acknowledging, until the socket is dropped.
pub(crate) async fn occupy(followed: &FollowedDatabase<'_>) -> TcpStream {
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

/// Reads messages up to one with the given tag.
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
