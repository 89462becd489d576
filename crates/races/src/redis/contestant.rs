//! What a Redis client must be able to do to race. One file per client implements it.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Result, ensure};

/// A client with one shared connection; a clone is another handle of the same connection.
///
/// Each is set up as its makers would for one busy shared connection, and keeps its own default deadlines.
/// The handle is `&mut` because redis-rs wants it so; every task has its own.
pub(crate) trait RedisContestant: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    fn connect(url: &str) -> impl Future<Output = Result<Self>> + Send;

    fn get(&mut self, key: &str) -> impl Future<Output = Result<String>> + Send;

    fn incr(&mut self, key: &str) -> impl Future<Output = Result<i64>> + Send;

    /// One pipeline of a GET per key, built anew each time, as one whose keys vary must be.
    fn get_many(&mut self, keys: &[String]) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// One pipeline that sets and gets `value`, twice; returns both replies.
    fn set_and_get_twice(
        &mut self,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Result<[String; 2]>> + Send;
}

/// How many keys [`fill`] writes; as many as a pipeline holds.
pub(crate) const KEYS: usize = 100;
/// The size of each value.
pub(crate) const VALUE_BYTES: usize = 100;

pub(crate) fn keys() -> Vec<String> {
    (0..KEYS).map(|i| format!("key:{i:04}")).collect()
}

/// Writes the keys, without any contestant's help.
pub(crate) fn fill(server: SocketAddr) -> Result<()> {
    let mut socket = TcpStream::connect(server)?;
    let value = "v".repeat(VALUE_BYTES);
    for key in keys() {
        let reply = send_command(&mut socket, &["SET", &key, &value])?;
        ensure!(reply == "+OK\r\n", "SET {key} was answered with {reply:?}");
    }
    Ok(())
}

/// Sends one command and reads one short reply.
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
