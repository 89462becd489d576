//! A stream and what was read of it, before and between replication: messages in turn, as a conversation.
//!
//! Invariant: what the server says beside the conversation (notices, parameters, notifications) is dealt with here and never
//! taken for an answer. Notices are logged by severity and SQLSTATE alone, since their words may hold a row's values.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use forebay_reservoir::{PostgresServerError, PostgresStream};
use postgres_protocol::message::backend::{self, Message};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::error::WireError;
use super::input::Input;

/// More than any server has; those beyond aren't kept.
const MAX_PARAMETERS: usize = 256;

/// What a connection runs on.
pub(crate) trait Line: AsyncRead + AsyncWrite + Unpin + Send {
    /// As [`PostgresStream::set_receive_low_water`].
    fn set_low_water(&self, bytes: usize) -> io::Result<()>;

    /// As [`PostgresStream::shutdown_and_wait`].
    fn hang_up(self) -> impl Future<Output = ()> + Send;
}

impl Line for PostgresStream {
    fn set_low_water(&self, bytes: usize) -> io::Result<()> {
        self.set_receive_low_water(bytes)
    }

    async fn hang_up(self) {
        PostgresStream::shutdown_and_wait(self).await;
    }
}

/// A conversation.
#[derive(Debug)]
pub(super) struct Channel<S> {
    pub(super) stream: S,
    pub(super) input: Input,
    pub(super) address: String,
    parameters: Vec<(String, String)>,
}

/// What the server answers.
pub(super) enum Reply {
    Error(PostgresServerError),
    /// `CopyBothResponse`: from now on both sides stream.
    CopyBoth,
    Message(Message),
}

impl<S: Line> Channel<S> {
    /// Messages may have `limit` bytes.
    pub(super) fn new(stream: S, address: String, limit: usize) -> Self {
        Channel { stream, input: Input::new(limit), address, parameters: Vec::new() }
    }

    /// What the server last said of a setting.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.stream.write_all(bytes).await.map_err(WireError::Lost)?;
        self.stream.flush().await.map_err(WireError::Lost)
    }

    /// The next answer.
    pub(super) async fn reply(&mut self) -> Result<Reply, WireError> {
        loop {
            while let Some(message) = self.input.take()? {
                match parse(message, &self.address)? {
                    Some(Reply::Message(Message::ParameterStatus(body))) => {
                        let (name, value) = (body.name(), body.value());
                        let text = |text: io::Result<&str>| text.map(ToOwned::to_owned).map_err(malformed);
                        keep(&mut self.parameters, text(name)?, text(value)?);
                    }
                    Some(reply) => return Ok(reply),
                    None => {}
                }
            }
            std::future::poll_fn(|cx| poll_fill(&mut self.stream, &mut self.input, cx)).await?;
        }
    }
}

/// Reads once; how much. The end of the stream is an error.
pub(super) fn poll_fill<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut Input,
    cx: &mut Context<'_>,
) -> Poll<Result<usize, WireError>> {
    let mut room = ReadBuf::new(input.room());
    ready!(Pin::new(stream).poll_read(cx, &mut room)).map_err(WireError::Lost)?;
    let bytes = room.filled().len();
    if bytes == 0 {
        return Poll::Ready(Err(WireError::closed()));
    }
    input.filled(bytes);
    Poll::Ready(Ok(bytes))
}

/// What the fields of an `ErrorResponse` say.
pub(super) fn server_error(body: &[u8]) -> PostgresServerError {
    PostgresServerError::from_fields(fields(body))
}

/// Logs a `NoticeResponse`.
pub(super) fn log_notice(body: &[u8], address: &str) {
    let notice = server_error(body);
    let (severity, sqlstate) = (notice.severity(), notice.code());
    tracing::debug!(address, severity, sqlstate, "the server sent a notice");
}

/// `None`: it was said beside the conversation, and is dealt with.
fn parse(message: &[u8], address: &str) -> Result<Option<Reply>, WireError> {
    let body = &message[5..];
    match message[0] {
        b'W' => Ok(Some(Reply::CopyBoth)),
        backend::ERROR_RESPONSE_TAG => Ok(Some(Reply::Error(server_error(body)))),
        backend::NOTICE_RESPONSE_TAG => {
            log_notice(body, address);
            Ok(None)
        }
        backend::NOTIFICATION_RESPONSE_TAG => Ok(None),
        _ => {
            let parsed = Message::parse(&mut BytesMut::from(message)).map_err(malformed)?;
            Ok(parsed.map(Reply::Message))
        }
    }
}

fn keep(parameters: &mut Vec<(String, String)>, name: String, value: String) {
    match parameters.iter().position(|(known, _)| *known == name) {
        Some(known) => parameters[known].1 = value,
        None if parameters.len() < MAX_PARAMETERS => parameters.push((name, value)),
        None => {}
    }
}

/// The letter and the value of each field.
fn fields(mut body: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&letter, rest) = body.split_first().filter(|(letter, _)| **letter != 0)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        body = &rest[end + 1..];
        Some((letter, &rest[..end]))
    })
}

pub(super) fn malformed(error: io::Error) -> WireError {
    WireError::Protocol(error.to_string())
}
