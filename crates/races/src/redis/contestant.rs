//! Trait of the Redis clients in the races. Each client implements it in a separate file.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};

/// Client with one shared connection. A clone is another handle of the same connection.
///
/// Each client has its default configuration, or one that is faster for a busy shared connection;
/// see its file. All keep their default deadlines. Methods take `&mut self` because redis-rs
/// requires it; every task has its own handle.
pub(crate) trait RedisContestant: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn connect(url: &str) -> impl Future<Output = Result<Self>> + Send;

    fn get(&mut self, key: &str) -> impl Future<Output = Result<String>> + Send;

    fn incr(&mut self, key: &str) -> impl Future<Output = Result<i64>> + Send;

    /// Sends one pipeline with a GET of each key. Each call builds it anew, as a program would
    /// whose keys vary.
    fn get_many(&mut self, keys: &[String]) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Sends one pipeline that sets and gets `value`, twice. Returns both replies.
    fn set_and_get_twice(
        &mut self,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Result<[String; 2]>> + Send;
}

/// Number of keys that [`fill`] writes, and number of GETs in a pipeline.
pub(crate) const KEYS: usize = 100;
/// Size of each value, in bytes.
pub(crate) const VALUE_BYTES: usize = 100;

pub(crate) fn keys() -> Vec<String> {
    (0..KEYS).map(|i| format!("key:{i:04}")).collect()
}

/// Writes the keys over a plain socket, not with a contestant.
pub(crate) fn fill(server: SocketAddr) -> Result<()> {
    let mut socket = TcpStream::connect(server)?;
    let value = "v".repeat(VALUE_BYTES);
    for key in keys() {
        let reply = send_command(&mut socket, &["SET", &key, &value])?;
        ensure!(reply == "+OK\r\n", "SET {key} returned {reply:?}");
    }
    Ok(())
}

/// Sends one command, and reads one short reply.
pub(crate) fn send_command(socket: &mut TcpStream, command: &[&str]) -> Result<String> {
    socket.write_all(encode(command).as_bytes())?;
    let mut reply = [0; 512];
    let read = socket.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
}

pub(crate) fn encode(command: &[&str]) -> String {
    let words: String = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", command.len())
}
