//! `forebay tail`: a terminal client of the shape protocol. Rows as they are, then changes as they come.
//!
//! Invariant: every message is printed once, whatever breaks in between; and no secret and no control character of a row
//! reaches the terminal.
//! Kept by: an answer is printed only when all of it is here, and only then does the offset move on (`reader.rs`); rows are
//! printed through `terminal::shown` (`message.rs`). Long-polls, not server-sent events: each answer says exactly where it ends.

mod message;
mod output;
mod reader;

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;
use tokio::time::sleep;

use self::output::Output;
use self::reader::{Reader, Said};
pub use self::reader::{Shape, Since, TailError};
use crate::client::{Client, ClientError, Endpoint};
use crate::signals::Signals;

/// A chunk is 10 MiB and a row, unless the server was told otherwise.
const MOST_BYTES: usize = 1 << 30;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Prints a shape until a signal or a closed pipe ends it.
///
/// # Errors
/// When the server refuses what was asked for; what it may answer later is asked again.
pub async fn tail(
    endpoint: Endpoint,
    shape: Shape,
    json: bool,
    mut signals: Signals,
) -> Result<(), TailError> {
    let mut following = Following {
        client: Client::new(endpoint),
        reader: Reader::new(shape),
        output: Output::new(json),
        pause: FIRST_PAUSE,
        lost: false,
    };
    tokio::select! {
        ended = following.run() => match ended {
            Err(TailError::Print(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            ended => ended,
        },
        _signal = signals.next() => Ok(()),
        () = nobody_reads() => Ok(()),
    }
}

struct Following {
    client: Client,
    reader: Reader,
    output: Output,
    /// Before the next try, if this one fails.
    pause: Duration,
    /// The last try failed.
    lost: bool,
}

impl Following {
    async fn run(&mut self) -> Result<(), TailError> {
        loop {
            if let Err(Trouble { why, after }) = self.step().await? {
                let after = after.unwrap_or(self.pause);
                self.output.note(&format!("{why}; trying again in {after:?}"));
                sleep(after).await;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                self.lost = true;
            }
        }
    }

    /// One question, and all of its answer printed.
    async fn step(&mut self) -> Result<Result<(), Trouble>, TailError> {
        let Following { client, reader, output, pause, lost } = self;
        let response = match client.get(&reader.path(), None).await {
            Ok(response) => response,
            Err(error) => return passing(error),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let shows = status.is_success();
        output.begin();
        let seen = |data: &[u8]| {
            if shows {
                output.progress(data);
            }
        };
        let body = match client.body(response, MOST_BYTES, seen).await {
            Ok(body) => body,
            Err(error) => return passing(error),
        };
        match reader.take(status, &headers, &body)? {
            Said::Messages { messages, is_up_to_date } => {
                if std::mem::take(lost) {
                    output.note("connected again");
                }
                *pause = FIRST_PAUSE;
                output.print(&messages, is_up_to_date)?;
            }
            Said::StartOver => output.start_over()?,
            Said::Later { why, after } => return Ok(Err(Trouble { why, after })),
        }
        Ok(Ok(()))
    }
}

/// Why to ask again, and when.
struct Trouble {
    why: String,
    after: Option<Duration>,
}

/// What may be otherwise in a moment, and what won't.
fn passing(error: ClientError) -> Result<Result<(), Trouble>, TailError> {
    match error {
        ClientError::Connect { .. } | ClientError::Broke { .. } => {
            Ok(Err(Trouble { why: error.to_string(), after: None }))
        }
        ClientError::TooLarge { .. } | ClientError::Unsendable { .. } => Err(error.into()),
    }
}

/// Resolves when whoever reads our output is gone: without a change to print, nothing else would tell. What is no pipe has nobody
/// at its other end.
async fn nobody_reads() {
    // Unchecked: the pipe stays one that blocks, since rows are written so; it is only watched here.
    let watched = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked);
    match watched {
        Ok(pipe) if !io::stdout().is_terminal() && pipe.ready(Interest::ERROR).await.is_ok() => {}
        Ok(_) | Err(_) => std::future::pending().await,
    }
}
