//! `forebay status`: the state of a running instance in the terminal.
//!
//! Invariant: whatever the instance says, the picture is lines of plain text, and nothing in them can act on the terminal.
//! Kept by: `picture.rs` is pure, leaves out what it doesn't find, and shows others' words through `terminal::shown`.

mod picture;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::time::sleep;

use crate::client::{Client, ClientError, Endpoint};
use crate::config::SecretText;
use crate::signals::Signals;
use crate::terminal::{Paint, Tone, shown};

/// A status of 100,000 shapes is far below.
const MOST_BYTES: usize = 64 << 20;
const EVERY: Duration = Duration::from_secs(1);

/// How it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// As the instance said it.
    Json,
    /// Once.
    Once,
    /// Again each second, on a terminal; otherwise once.
    Live,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// Nobody answers.
    #[error("{0}; is it running, and is that its admin address? Say another with --url")]
    Client(#[from] ClientError),
    /// It wants a secret, or another one.
    #[error("the instance wants a secret: say it in FOREBAY_ADMIN_SECRET")]
    Secret,
    /// What answers is no instance.
    #[error("what answers at {at} is no Forebay's admin address ({what}): say another with --url")]
    Stranger {
        /// The address.
        at: String,
        /// What it said.
        what: String,
    },
    /// Standard output can't be written.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// Shows the state of the instance whose admin address is given.
///
/// # Errors
/// When there is nothing to show. While it is shown live, that is told in its place.
pub async fn status(
    endpoint: Endpoint,
    secret: Option<SecretText>,
    show: Show,
    mut signals: Signals,
) -> Result<(), StatusError> {
    let mut client = Client::new(endpoint);
    let paint = Paint::on(&io::stdout());
    let secret = secret.as_ref().map(SecretText::reveal);
    let first = tokio::select! {
        answer = ask(&mut client, secret) => answer?,
        _signal = signals.next() => return Ok(()),
    };
    match show {
        Show::Json => Ok(print(&format!("{first:#}\n"))?),
        Show::Live if io::stdout().is_terminal() => {
            let mut live = Live { client, secret, paint };
            print(BEGIN)?;
            let ended = tokio::select! {
                ended = live.run(first) => ended,
                _signal = signals.next() => Ok(()),
            };
            print(END)?;
            ended
        }
        Show::Once | Show::Live => Ok(print(&picture::draw(&first, paint))?),
    }
}

struct Live<'a> {
    client: Client,
    secret: Option<&'a str>,
    paint: Paint,
}

impl Live<'_> {
    async fn run(&mut self, first: Value) -> Result<(), StatusError> {
        let mut seen = first;
        let mut trouble = None;
        loop {
            let mut picture = picture::draw(&seen, self.paint);
            if let Some(why) = trouble.take() {
                picture +=
                    &self.paint.tone(Tone::Bad, &format!("\nno answer: {why}\nthis is what it said last\n"));
            }
            picture += &self.paint.tone(Tone::Faint, "\nCtrl-C ends this\n");
            print(&over_the_last(&picture, height()))?;
            sleep(EVERY).await;
            match ask(&mut self.client, self.secret).await {
                Ok(status) => seen = status,
                Err(error) => trouble = Some(error.to_string()),
            }
        }
    }
}

/// Clears the screen, and has lines cut at its edge: one that went on in the next would push the picture away.
const BEGIN: &str = "\x1b[2J\x1b[?7l";
const END: &str = "\x1b[?7h\n";

/// Line by line over the picture before, of which the rest is cleared then: nothing flickers, and nothing scrolls.
fn over_the_last(picture: &str, height: usize) -> String {
    let lines: Vec<&str> = picture.lines().take(height).collect();
    format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
}

/// How many lines the terminal has.
fn height() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        Ok(_) | Err(_) => usize::MAX,
    }
}

async fn ask(client: &mut Client, secret: Option<&str>) -> Result<Value, StatusError> {
    let response = client.get("/v1/status", secret).await?;
    let status = response.status();
    let body = client.body(response, MOST_BYTES, |_| {}).await?;
    let stranger =
        |what: &str| StatusError::Stranger { at: client.endpoint().to_string(), what: shown(what) };
    match status {
        StatusCode::OK => {
            let said: Value = serde_json::from_slice(&body).map_err(|_| stranger("no JSON"))?;
            if said["command"].is_string() { Ok(said) } else { Err(stranger("no status of ours")) }
        }
        StatusCode::UNAUTHORIZED => Err(StatusError::Secret),
        status => Err(stranger(status.as_str())),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_drawn_over_the_last_one_and_never_taller_than_the_terminal() {
        assert_eq!(over_the_last("a\nb\n", 9), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
        assert_eq!(over_the_last("a\nb\nc\n", 2), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
