//! `forebay status`: prints the state of a running instance.
//!
//! Invariant: no control character of the response reaches the text output. A process that hangs
//! delays the command by at most `STATUS_TIMEOUT`.
//! Enforced by: `renderer.rs` is pure, skips missing fields, and escapes text with
//! `terminal::escape_controls`. `fetch` has the timeout.

mod renderer;
mod stream_table;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::client::{ClientError, Endpoint, HttpClient};
use crate::config::SecretText;
use crate::signals::Signals;
use crate::terminal::{Paint, Tone, escape_controls};

/// Maximum size of a status response. The list of shapes is bounded, so a status is far smaller.
const MAX_STATUS_BYTES: usize = 64 << 20;
/// Timeout of a request for the status, including its body.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two updates on a terminal.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFormat {
    /// The JSON of the instance.
    Json,
    /// Text, once.
    Once,
    /// Text, updated each second on a terminal; otherwise once.
    Live,
}

/// Why no status can be printed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The instance doesn't respond.
    #[error("{0}; is the instance running, and is this its admin address? Set another with --url")]
    Client(#[from] ClientError),
    /// The instance accepts connections, but sends no complete response.
    #[error(
        "no status from {at} within {limit:?}: the process there accepts connections but hangs, or is \
         overloaded or stopped; look at its log and CPU use, restart it if it stays so, or set another address \
         with --url"
    )]
    Timeout {
        /// Address of the instance.
        at: String,
        /// Timeout of the request.
        limit: Duration,
    },
    /// The secret is missing or wrong.
    #[error("the secret is missing or wrong: set FOREBAY_ADMIN_SECRET to the secret of the instance")]
    Secret,
    /// The server isn't an instance of Forebay.
    #[error("{at} is not an admin address of Forebay ({what}): set another with --url")]
    NotForebay {
        /// Address of the server.
        at: String,
        /// What is wrong with the response.
        what: String,
    },
    /// The instance is of a release without lists of streams.
    #[error("{at} lists no streams: it is an older release, or not an admin address of Forebay")]
    OlderRelease {
        /// Address of the server.
        at: String,
    },
    /// Standard output can't be written.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// Prints the state of the instance at an admin address.
///
/// # Errors
/// Fails if the first request fails. A later failure is shown above the last status.
pub async fn status(
    endpoint: Endpoint,
    secret: Option<SecretText>,
    format: StatusFormat,
    mut signals: Signals,
) -> Result<(), StatusError> {
    let mut client = HttpClient::new(endpoint);
    let paint = Paint::on(&io::stdout());
    let secret = secret.as_ref().map(SecretText::reveal);
    let first = tokio::select! {
        answer = fetch(&mut client, StatusPage::Status, secret, STATUS_TIMEOUT) => answer?,
        _signal = signals.next() => return Ok(()),
    };
    match format {
        StatusFormat::Json => Ok(print(&format!("{first:#}\n"))?),
        StatusFormat::Live if io::stdout().is_terminal() => {
            let mut view = LiveView { client, secret, paint };
            print(CLEAR_SCREEN)?;
            let ended = tokio::select! {
                ended = view.run(first) => ended,
                _signal = signals.next() => Ok(()),
            };
            print(RESTORE_SCREEN)?;
            ended
        }
        StatusFormat::Once | StatusFormat::Live => Ok(print(&renderer::render(&first, paint))?),
    }
}

/// Prints the open streams of all instances, once.
///
/// # Errors
/// Fails if the instance at the admin address doesn't list them.
pub async fn streams(
    endpoint: Endpoint,
    secret: Option<SecretText>,
    format: StatusFormat,
    mut signals: Signals,
) -> Result<(), StatusError> {
    let mut client = HttpClient::new(endpoint);
    let secret = secret.as_ref().map(SecretText::reveal);
    let list = tokio::select! {
        list = fetch(&mut client, StatusPage::Streams, secret, STATUS_TIMEOUT) => list?,
        _signal = signals.next() => return Ok(()),
    };
    match format {
        StatusFormat::Json => Ok(print(&format!("{list:#}\n"))?),
        StatusFormat::Once | StatusFormat::Live => {
            Ok(print(&stream_table::render(&list, Paint::on(&io::stdout())))?)
        }
    }
}

/// What is requested of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusPage {
    Status,
    Streams,
}

impl StatusPage {
    fn path(self) -> &'static str {
        match self {
            StatusPage::Status => "/v1/status",
            StatusPage::Streams => "/v1/streams",
        }
    }

    /// Returns whether a response has the page's fields.
    fn is_in(self, response: &Value) -> bool {
        match self {
            StatusPage::Status => response["command"].is_string(),
            StatusPage::Streams => response["streams"].is_array(),
        }
    }
}

/// Status on a terminal, updated each second.
struct LiveView<'a> {
    client: HttpClient,
    secret: Option<&'a str>,
    paint: Paint,
}

impl LiveView<'_> {
    async fn run(&mut self, first: Value) -> Result<(), StatusError> {
        let mut status = first;
        let mut failure = None;
        loop {
            let mut text = String::new();
            // First, because a short terminal leaves out the last lines.
            if let Some(why) = failure.take() {
                text +=
                    &self.paint.tone(Tone::Bad, &format!("no response: {why}\nshowing the last status\n"));
                text += "\n";
            }
            text += &renderer::render(&status, self.paint);
            text += &self.paint.tone(Tone::Faint, "\nCtrl-C to quit\n");
            print(&overdraw(&text, height()))?;
            sleep(REFRESH_INTERVAL).await;
            match fetch(&mut self.client, StatusPage::Status, self.secret, STATUS_TIMEOUT).await {
                Ok(latest) => status = latest,
                Err(error) => failure = Some(error.to_string()),
            }
        }
    }
}

/// Clears the screen, and disables line wrap: a wrapped line would scroll the status away.
const CLEAR_SCREEN: &str = "\x1b[2J\x1b[?7l";
/// Enables line wrap again.
const RESTORE_SCREEN: &str = "\x1b[?7h\n";

/// Returns terminal output that overwrites the last status line by line, and clears the rest of the
/// screen. So the screen neither flickers nor scrolls. Lines beyond `height` are left out.
fn overdraw(text: &str, height: usize) -> String {
    let lines: Vec<&str> = text.lines().take(height).collect();
    format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
}

/// Returns the number of lines of the terminal; `usize::MAX` if it is unknown.
fn height() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        Ok(_) | Err(_) => usize::MAX,
    }
}

/// Requests a page. Fails if the response isn't complete within `limit`.
async fn fetch(
    client: &mut HttpClient,
    page: StatusPage,
    secret: Option<&str>,
    limit: Duration,
) -> Result<Value, StatusError> {
    let fetched = timeout(limit, request_page(client, page, secret)).await;
    fetched.unwrap_or_else(|_| Err(StatusError::Timeout { at: client.endpoint().to_string(), limit }))
}

async fn request_page(
    client: &mut HttpClient,
    page: StatusPage,
    secret: Option<&str>,
) -> Result<Value, StatusError> {
    let response = client.get(page.path(), secret).await?;
    let status = response.status();
    let body = client.body(response, MAX_STATUS_BYTES, |_| {}).await?;
    let not_forebay = |what: &str| StatusError::NotForebay {
        at: client.endpoint().to_string(),
        what: escape_controls(what),
    };
    match status {
        StatusCode::OK => {
            let report: Value = serde_json::from_slice(&body).map_err(|_| not_forebay("not JSON"))?;
            if page.is_in(&report) { Ok(report) } else { Err(not_forebay("not a status")) }
        }
        StatusCode::UNAUTHORIZED => Err(StatusError::Secret),
        StatusCode::NOT_FOUND if page == StatusPage::Streams => {
            Err(StatusError::OlderRelease { at: client.endpoint().to_string() })
        }
        status => Err(not_forebay(status.as_str())),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_process_that_hangs_is_an_error_that_says_what_to_do() {
        // The kernel accepts the connection; no response follows.
        let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = hung.local_addr().unwrap().to_string();
        let mut client = HttpClient::new(format!("http://{address}").parse().unwrap());
        let limit = Duration::from_millis(50);
        let error = fetch(&mut client, StatusPage::Status, None, limit).await.unwrap_err().to_string();
        for part in [address.as_str(), "within 50ms", "hangs", "its log", "--url"] {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }

    #[test]
    fn a_status_overwrites_the_last_one_and_is_never_taller_than_the_terminal() {
        assert_eq!(overdraw("a\nb\n", 9), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
        assert_eq!(overdraw("a\nb\nc\n", 2), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
