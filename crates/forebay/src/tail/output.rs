//! Output of `forebay tail`: rows and changes on standard output, notes and progress on standard
//! error.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use super::message::{TailMessage, json_line};
use super::reader::TailError;
use crate::numbers::{grouped, size};
use crate::terminal::{Paint, Tone};

/// Minimum interval between two updates of the progress line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Size from which buffered lines are written.
const WRITE_BYTES: usize = 64 * 1024;
const SPINNER: [&str; 4] = ["|", "/", "-", "\\"];

/// Writes rows, notes and progress.
pub(super) struct TailOutput {
    json: bool,
    paint: Paint,
    /// Colours of notes on standard error.
    note_paint: Paint,
    /// Progress line, if standard error is a terminal.
    progress: Option<ProgressLine>,
    rows: u64,
    bytes: u64,
    /// Lines and bytes of the current reply so far. Each message is one line.
    reply_progress: (u64, u64),
    is_live: bool,
}

/// Progress while the rows are loaded.
struct ProgressLine {
    started: Instant,
    drawn: Option<Instant>,
    frame: usize,
}

impl TailOutput {
    pub(super) fn new(json: bool) -> TailOutput {
        let progress = io::stderr().is_terminal().then(|| ProgressLine {
            started: Instant::now(),
            drawn: None,
            frame: 0,
        });
        let paint = Paint::on(&io::stdout());
        TailOutput {
            json,
            paint,
            note_paint: Paint::on(&io::stderr()),
            progress,
            rows: 0,
            bytes: 0,
            reply_progress: (0, 0),
            is_live: false,
        }
    }

    /// Starts a new reply.
    pub(super) fn begin_reply(&mut self) {
        self.reply_progress = (0, 0);
    }

    /// Updates the progress with more bytes of the reply.
    pub(super) fn progress(&mut self, data: &[u8]) {
        if self.is_live {
            return;
        }
        self.reply_progress.0 += data.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.reply_progress.1 += data.len() as u64;
        let (rows, bytes) = (self.rows + self.reply_progress.0, self.bytes + self.reply_progress.1);
        if let Some(progress) = &mut self.progress
            && progress.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW_INTERVAL)
        {
            progress.frame += 1;
            progress.drawn = Some(Instant::now());
            let line = progress_line(
                SPINNER[progress.frame % SPINNER.len()],
                rows,
                bytes,
                progress.started.elapsed(),
            );
            let _closed = write!(io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// Prints a complete reply.
    pub(super) fn print(&mut self, messages: &[&RawValue], is_up_to_date: bool) -> Result<(), TailError> {
        self.clear();
        // A live reply with only a control message means that nothing changed.
        let has_changes = !self.is_live || messages.len() > 1;
        let (mut out, mut lines) = (io::stdout().lock(), String::new());
        for raw in messages {
            self.bytes += raw.get().len() as u64;
            let Ok(message) = serde_json::from_str::<TailMessage>(raw.get()) else {
                return Err(TailError::NotShapeServer { what: "an invalid message" });
            };
            self.rows += u64::from(message.is_change());
            if self.json && has_changes {
                lines += &json_line(raw);
            } else if !self.json && !message.is_control() {
                lines += &message.line(self.paint);
            }
            // Standard output would otherwise write each line with its own system call.
            if lines.len() >= WRITE_BYTES {
                out.write_all(lines.as_bytes())?;
                lines.clear();
            }
        }
        out.write_all(lines.as_bytes())?;
        out.flush()?;
        drop(out);
        if is_up_to_date && !std::mem::replace(&mut self.is_live, true) {
            let took = self.progress.as_ref().map_or(Duration::ZERO, |progress| progress.started.elapsed());
            let duration =
                if took.is_zero() { String::new() } else { format!(" in {:.1} s", took.as_secs_f64()) };
            let (rows, bytes) = (grouped(self.rows), size(self.bytes));
            self.note(&format!("up to date: {rows} rows, {bytes}{duration}; changes follow"));
        }
        Ok(())
    }

    /// Starts over after a delay: the server has replaced the shape.
    pub(super) fn reset(&mut self, after: Duration) -> Result<(), TailError> {
        if self.json {
            let mut out = io::stdout().lock();
            out.write_all(b"{\"headers\":{\"control\":\"must-refetch\"}}\n")?;
            out.flush()?;
        }
        (self.rows, self.bytes, self.is_live) = (0, 0, false);
        if let Some(progress) = &mut self.progress {
            progress.started = Instant::now();
        }
        self.note(&format!("shape replaced: reading all rows again in {after:?}"));
        Ok(())
    }

    /// Prints a note on standard error.
    pub(super) fn note(&mut self, text: &str) {
        self.clear();
        let note = self.note_paint.tone(Tone::Faint, &format!("forebay: {text}"));
        // A closed standard error is no reason to stop.
        let _closed = writeln!(io::stderr(), "{note}");
    }

    /// Removes the progress line, so that a line can be printed in its place.
    fn clear(&mut self) {
        if self.progress.as_mut().is_some_and(|progress| progress.drawn.take().is_some()) {
            let _closed = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn progress_line(spinner: &str, rows: u64, bytes: u64, took: Duration) -> String {
    let bytes_per_second = (bytes as f64 / took.as_secs_f64().max(0.001)) as u64;
    format!("{spinner} {} rows, {}, {}/s", grouped(rows), size(bytes), size(bytes_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_rows_bytes_and_bytes_per_second() {
        let line = progress_line("|", 1200, 2 << 20, Duration::from_secs(2));
        assert_eq!(line, "| 1,200 rows, 2.0 MiB, 1.0 MiB/s");
    }
}
