//! Span of one request, with the names of OpenTelemetry's semantic conventions for Redis. Feature
//! `tracing`.
//!
//! Invariant: a span holds the names of commands and the codes of errors, never arguments, replies
//! or the texts of errors.

use std::borrow::Cow;

use tracing::Span;
use tracing::field::Empty;

use crate::config::{Address, Config};
use crate::core::pipeline::{ExpectedReplies, Replies};
use crate::error::RedisServerError;
use crate::hooks::RequestOutcome;
use crate::reply::{ReplyReader, ReplyToken};
use crate::request_observation::first_command_name;

/// Longest name that is recorded, in bytes. Longer ones are no names of commands.
const MAX_NAME: usize = 64;

/// Span from the submission of a request to its end. It is not entered: events of the caller do not
/// belong to it.
pub(crate) struct RequestSpan {
    span: Span,
    expect: ExpectedReplies,
}

impl RequestSpan {
    /// Creates the span, as a child of the caller's current span.
    pub(crate) fn begin(config: &Config, expect: ExpectedReplies, encoded: &[u8]) -> RequestSpan {
        // The values are computed only if the span is enabled.
        let span = tracing::info_span!(
            target: "forebay_redis::request",
            "redis request",
            "otel.name" = operation(expect, encoded),
            "otel.kind" = "client",
            "otel.status_code" = Empty,
            "db.system.name" = "redis",
            "db.operation.name" = operation(expect, encoded),
            "db.operation.batch.size" = batch_size(expect, encoded),
            "db.namespace" = tracing::field::display(config.db),
            "db.response.status_code" = Empty,
            "error.type" = Empty,
            "server.address" = &*server_address(config),
            "server.port" = server_port(config),
        );
        RequestSpan { span, expect }
    }

    /// Records how the request ended, and closes the span. `replies` are those of a request that
    /// got them.
    pub(crate) fn end(self, outcome: &RequestOutcome<'_>, replies: Option<&Replies>) {
        if self.span.is_disabled() {
            return;
        }
        match outcome {
            RequestOutcome::Replied => {
                if let Some(error) = replies.and_then(|replies| error_reply(self.expect, replies)) {
                    let code = name_or_unknown(error.code().as_bytes());
                    self.span.record("db.response.status_code", code);
                    self.fail(code);
                }
            }
            RequestOutcome::Failed(_) | RequestOutcome::Dropped => self.fail(outcome.as_str()),
        }
    }

    fn fail(&self, error_type: &str) {
        self.span.record("error.type", error_type);
        self.span.record("otel.status_code", "ERROR");
    }
}

/// Returns the name of the operation: the command, `PIPELINE` or `MULTI`.
fn operation(expect: ExpectedReplies, encoded: &[u8]) -> &str {
    let name = name_or_unknown(first_command_name(encoded));
    match expect {
        ExpectedReplies::Confirmations(..)
        | ExpectedReplies::Replies(1)
        | ExpectedReplies::Verified(1, _) => name,
        ExpectedReplies::Replies(_) | ExpectedReplies::Verified(..) if name == "MULTI" => name,
        ExpectedReplies::Replies(_) | ExpectedReplies::Verified(..) => "PIPELINE",
    }
}

/// Returns the number of commands of a batch, without `MULTI` and `EXEC`.
fn batch_size(expect: ExpectedReplies, encoded: &[u8]) -> Option<u32> {
    let (ExpectedReplies::Replies(replies) | ExpectedReplies::Verified(replies, _)) = expect else {
        return None;
    };
    // A `MULTI` of its own, on a dedicated connection, has one reply.
    let is_transaction = operation(expect, encoded) == "MULTI";
    let commands = if is_transaction { replies.saturating_sub(2) } else { replies };
    (commands > 1).then_some(commands)
}

/// Returns a word that can be the name of a command or the code of an error. Any other text may be
/// a value that the caller put in its place.
fn name_or_unknown(word: &[u8]) -> &str {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-|".contains(byte);
    match std::str::from_utf8(word) {
        Ok(name) if (1..=MAX_NAME).contains(&name.len()) && word.iter().all(is_letter) => name,
        Ok(_) | Err(_) => "unknown",
    }
}

/// Returns the server's error, if the request has one reply and it is an error.
fn error_reply(expect: ExpectedReplies, replies: &Replies) -> Option<RedisServerError> {
    let (ExpectedReplies::Replies(1) | ExpectedReplies::Verified(1, _) | ExpectedReplies::Confirmations(..)) =
        expect
    else {
        return None;
    };
    match ReplyReader::new(&replies.first, 0).token().ok()? {
        ReplyToken::Error(text) => Some(RedisServerError::new(text)),
        _ => None,
    }
}

fn server_address(config: &Config) -> Cow<'_, str> {
    match &config.address {
        Address::Tcp { host, .. } => host.into(),
        Address::Unix(path) => path.to_string_lossy(),
    }
}

fn server_port(config: &Config) -> Option<u16> {
    match &config.address {
        Address::Tcp { port, .. } => Some(*port),
        Address::Unix(_) => None,
    }
}
