//! `forebay tail`: prints the rows of a shape, then its changes as they arrive.
//!
//! Invariant: every message is printed once, even if connections are lost. No secret and no control
//! character of a row reaches the terminal. Every request after a failure or a reset waits first.
//! Enforced by: a reply is printed only when it is complete, and only then the offset advances
//! (`reader.rs`). Rows are escaped with `terminal::escape_controls` (`message.rs`). Delays come
//! from `TailBackoff` (`tail_backoff.rs`), or from a `Retry-After` that is longer.
//!
//! It uses long polling rather than server-sent events, because each reply states its end offset.

mod message;
mod output;
mod reader;
mod tail_backoff;

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::time::sleep;

use self::output::TailOutput;
pub use self::reader::{TailError, TailShape, TailStart};
use self::reader::{TailReader, TailReply};
use self::tail_backoff::TailBackoff;
use crate::client::{ClientError, Endpoint, HttpClient};
use crate::signals::Signals;

/// Maximum size of a reply. By default a server sends up to 10 MiB and one row.
const MAX_REPLY_BYTES: usize = 1 << 30;
/// Maximum delay before a retry, unless `Retry-After` is longer.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Maximum delay before all rows are read again.
const MAX_RESET_DELAY: Duration = Duration::from_secs(5);

/// Prints a shape until a signal or a closed pipe.
///
/// # Errors
/// Fails if the server refuses the request. Temporary failures are retried.
pub async fn tail(
    endpoint: Endpoint,
    shape: TailShape,
    json: bool,
    mut signals: Signals,
) -> Result<(), TailError> {
    let mut session = TailSession {
        client: HttpClient::new(endpoint),
        reader: TailReader::new(shape),
        output: TailOutput::new(json),
        retries: TailBackoff::new(MAX_RETRY_DELAY),
        resets: TailBackoff::new(MAX_RESET_DELAY),
        lost: false,
    };
    tokio::select! {
        ended = session.run() => match ended {
            Err(TailError::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            ended => ended,
        },
        _signal = signals.next() => Ok(()),
        () = output_closed() => Ok(()),
    }
}

/// State of one run of `forebay tail`.
struct TailSession {
    client: HttpClient,
    reader: TailReader,
    output: TailOutput,
    /// Delays before retries. They start again after a reply with messages.
    retries: TailBackoff,
    /// Delays before all rows are read again. They start again once the client is up to date: a
    /// shape that is replaced before its last row is no progress.
    resets: TailBackoff,
    /// Whether requests have failed since the last reply.
    lost: bool,
}

impl TailSession {
    async fn run(&mut self) -> Result<(), TailError> {
        loop {
            if let Err(RetryReason { why, after }) = self.step().await? {
                let delay = self.retries.take();
                // A server that always replies `Retry-After: 0` is asked less and less often, too.
                let after = after.map_or(delay, |after| after.max(delay));
                self.output.note(&format!("{why}; retrying in {after:?}"));
                sleep(after).await;
                self.lost = true;
            }
        }
    }

    /// Sends one request, and prints its reply.
    async fn step(&mut self) -> Result<Result<(), RetryReason>, TailError> {
        let TailSession { client, reader, output, retries, resets, lost } = self;
        let response = match client.get(&reader.path(), None).await {
            Ok(response) => response,
            Err(error) => return retry_or_fail(error),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let has_rows = status.is_success();
        output.begin_reply();
        let on_data = |data: &[u8]| {
            if has_rows {
                output.progress(data);
            }
        };
        let body = match client.body(response, MAX_REPLY_BYTES, on_data).await {
            Ok(body) => body,
            Err(error) => return retry_or_fail(error),
        };
        match reader.handle_reply(status, &headers, &body)? {
            TailReply::Messages { messages, is_up_to_date } => {
                if std::mem::take(lost) {
                    output.note("reconnected");
                }
                retries.reset();
                if is_up_to_date {
                    resets.reset();
                }
                output.print(&messages, is_up_to_date)?;
            }
            TailReply::Reset => {
                let after = resets.take();
                output.reset(after)?;
                sleep(after).await;
            }
            TailReply::RetryLater { why, after } => return Ok(Err(RetryReason { why, after })),
        }
        Ok(Ok(()))
    }
}

/// Why a request is retried, and after which delay.
struct RetryReason {
    why: String,
    after: Option<Duration>,
}

/// Returns a reason to retry if the failure may be temporary, or else the error.
fn retry_or_fail(error: ClientError) -> Result<Result<(), RetryReason>, TailError> {
    match error {
        ClientError::Connect { .. } | ClientError::Disconnected { .. } => {
            Ok(Err(RetryReason { why: error.to_string(), after: None }))
        }
        ClientError::TooLarge { .. } | ClientError::Unsendable { .. } => Err(error.into()),
    }
}

/// Waits until the program that reads our output closes the pipe. A write would notice that, too,
/// but only at the next change. Never returns if standard output isn't a pipe.
async fn output_closed() {
    // Unchecked, because the pipe stays in blocking mode: rows are written with blocking writes.
    // Here the pipe is only polled for errors.
    let watched = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked);
    match watched {
        Ok(pipe) if !io::stdout().is_terminal() && pipe.ready(Interest::ERROR).await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}
