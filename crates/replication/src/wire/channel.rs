//! Message channel: a transport and its read buffer, used before streaming starts.
//!
//! Invariant: asynchronous messages (notices, parameters, notifications) are handled here and never
//! returned as replies. Notices are logged with severity and SQLSTATE only, since their text may
//! quote values of rows.
//! Enforced by: [`Channel::reply`] is the only reader.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use forebay_reservoir::{PostgresServerError, PostgresStream};
use postgres_protocol::message::backend::{self, Message};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::error::WireError;
use super::read_buffer::ReadBuffer;

/// Maximum number of stored server parameters. Postgres reports fewer.
const MAX_PARAMETERS: usize = 256;

/// Byte stream of a replication connection: a socket, or memory in tests.
pub(crate) trait ReplicationTransport: AsyncRead + AsyncWrite + Unpin + Send {
    /// Sets `SO_RCVLOWAT`; see [`PostgresStream::set_receive_low_water`].
    fn set_low_water(&self, bytes: usize) -> io::Result<()>;

    /// Closes the stream and waits for the server; see [`PostgresStream::shutdown_and_wait`].
    fn shutdown_and_wait(self) -> impl Future<Output = ()> + Send;
}

impl ReplicationTransport for PostgresStream {
    fn set_low_water(&self, bytes: usize) -> io::Result<()> {
        self.set_receive_low_water(bytes)
    }

    async fn shutdown_and_wait(self) {
        PostgresStream::shutdown_and_wait(self).await;
    }
}

/// A transport with its read buffer.
#[derive(Debug)]
pub(super) struct Channel<S> {
    pub(super) stream: S,
    pub(super) input: ReadBuffer,
    pub(super) address: String,
    parameters: Vec<(String, String)>,
}

/// A reply of the server.
pub(super) enum BackendReply {
    Error(PostgresServerError),
    /// `CopyBothResponse`: both sides stream from now on.
    CopyBoth,
    Message(Message),
}

impl<S: ReplicationTransport> Channel<S> {
    /// Creates a channel for messages of up to `limit` bytes.
    pub(super) fn new(stream: S, address: String, limit: usize) -> Self {
        Channel { stream, input: ReadBuffer::new(limit), address, parameters: Vec::new() }
    }

    /// Returns the last reported value of a server parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(stored, _)| stored == name).map(|(_, value)| value.as_str())
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.stream.write_all(bytes).await.map_err(WireError::Lost)?;
        self.stream.flush().await.map_err(WireError::Lost)
    }

    /// Returns the next reply.
    pub(super) async fn reply(&mut self) -> Result<BackendReply, WireError> {
        loop {
            while let Some(message) = self.input.take()? {
                match parse(message, &self.address)? {
                    Some(BackendReply::Message(Message::ParameterStatus(body))) => {
                        let (name, value) = (body.name(), body.value());
                        let text = |text: io::Result<&str>| text.map(ToOwned::to_owned).map_err(malformed);
                        store(&mut self.parameters, text(name)?, text(value)?);
                    }
                    Some(reply) => return Ok(reply),
                    None => {}
                }
            }
            std::future::poll_fn(|cx| poll_fill(&mut self.stream, &mut self.input, cx)).await?;
        }
    }
}

/// Reads once and returns the number of bytes. The end of the stream is an error.
pub(super) fn poll_fill<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut ReadBuffer,
    cx: &mut Context<'_>,
) -> Poll<Result<usize, WireError>> {
    let mut free = ReadBuf::new(input.free_space());
    ready!(Pin::new(stream).poll_read(cx, &mut free)).map_err(WireError::Lost)?;
    let bytes = free.filled().len();
    if bytes == 0 {
        return Poll::Ready(Err(WireError::closed()));
    }
    input.filled(bytes);
    Poll::Ready(Ok(bytes))
}

/// Parses the fields of an `ErrorResponse`.
pub(super) fn server_error(body: &[u8]) -> PostgresServerError {
    PostgresServerError::from_fields(fields(body))
}

/// Logs a `NoticeResponse`.
pub(super) fn log_notice(body: &[u8], address: &str) {
    let notice = server_error(body);
    let (severity, sqlstate) = (notice.severity(), notice.code());
    tracing::debug!(address, severity, sqlstate, "notice received");
}

/// Parses a message; `None` if it was asynchronous and is handled.
fn parse(message: &[u8], address: &str) -> Result<Option<BackendReply>, WireError> {
    let body = &message[5..];
    match message[0] {
        b'W' => Ok(Some(BackendReply::CopyBoth)),
        backend::ERROR_RESPONSE_TAG => Ok(Some(BackendReply::Error(server_error(body)))),
        backend::NOTICE_RESPONSE_TAG => {
            log_notice(body, address);
            Ok(None)
        }
        backend::NOTIFICATION_RESPONSE_TAG => Ok(None),
        _ => {
            let parsed = Message::parse(&mut BytesMut::from(message)).map_err(malformed)?;
            Ok(parsed.map(BackendReply::Message))
        }
    }
}

fn store(parameters: &mut Vec<(String, String)>, name: String, value: String) {
    match parameters.iter().position(|(stored, _)| *stored == name) {
        Some(index) => parameters[index].1 = value,
        None if parameters.len() < MAX_PARAMETERS => parameters.push((name, value)),
        None => {}
    }
}

/// Returns the type and the value of each field.
fn fields(mut body: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&kind, rest) = body.split_first().filter(|(kind, _)| **kind != 0)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        body = &rest[end + 1..];
        Some((kind, &rest[..end]))
    })
}

pub(super) fn malformed(error: io::Error) -> WireError {
    WireError::Protocol(error.to_string())
}
