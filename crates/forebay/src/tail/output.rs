//! Rows and changes on standard output; what happens meanwhile on standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use super::message::{Message, json_line};
use super::reader::TailError;
use crate::numbers::{grouped, size};
use crate::terminal::{Paint, Tone};

/// How often the progress is drawn again.
const FRAME: Duration = Duration::from_millis(100);
const BLOCK: usize = 64 * 1024;
const SPINNER: [&str; 4] = ["|", "/", "-", "\\"];

pub(super) struct Output {
    json: bool,
    paint: Paint,
    beside: Paint,
    /// Drawn on standard error while rows come, if that is a terminal.
    progress: Option<Progress>,
    rows: u64,
    bytes: u64,
    /// Of the answer that comes: its lines and bytes so far. Messages are one a line.
    coming: (u64, u64),
    is_live: bool,
}

struct Progress {
    begun: Instant,
    drawn: Option<Instant>,
    frame: usize,
}

impl Output {
    pub(super) fn new(json: bool) -> Output {
        let progress =
            io::stderr().is_terminal().then(|| Progress { begun: Instant::now(), drawn: None, frame: 0 });
        let paint = Paint::on(&io::stdout());
        Output {
            json,
            paint,
            beside: Paint::on(&io::stderr()),
            progress,
            rows: 0,
            bytes: 0,
            coming: (0, 0),
            is_live: false,
        }
    }

    /// An answer begins.
    pub(super) fn begin(&mut self) {
        self.coming = (0, 0);
    }

    /// More of it has come.
    pub(super) fn progress(&mut self, data: &[u8]) {
        if self.is_live {
            return;
        }
        self.coming.0 += data.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.coming.1 += data.len() as u64;
        let (rows, bytes) = (self.rows + self.coming.0, self.bytes + self.coming.1);
        if let Some(progress) = &mut self.progress
            && progress.drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME)
        {
            progress.frame += 1;
            progress.drawn = Some(Instant::now());
            let line =
                progress_line(SPINNER[progress.frame % SPINNER.len()], rows, bytes, progress.begun.elapsed());
            let _closed = write!(io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// A whole answer.
    pub(super) fn print(&mut self, messages: &[&RawValue], is_up_to_date: bool) -> Result<(), TailError> {
        self.clear();
        // That nothing has changed is no news.
        let is_news = !self.is_live || messages.len() > 1;
        let (mut out, mut lines) = (io::stdout().lock(), String::new());
        for raw in messages {
            self.bytes += raw.get().len() as u64;
            let Ok(message) = serde_json::from_str::<Message>(raw.get()) else {
                return Err(TailError::Stranger { what: "a message that is none" });
            };
            self.rows += u64::from(message.is_change());
            if self.json && is_news {
                lines += &json_line(raw);
            } else if !self.json && !message.is_control() {
                lines += &message.line(self.paint);
            }
            // Standard output is written line by line otherwise, each with a call of its own.
            if lines.len() >= BLOCK {
                out.write_all(lines.as_bytes())?;
                lines.clear();
            }
        }
        out.write_all(lines.as_bytes())?;
        out.flush()?;
        drop(out);
        if is_up_to_date && !std::mem::replace(&mut self.is_live, true) {
            let took = self.progress.as_ref().map_or(Duration::ZERO, |progress| progress.begun.elapsed());
            let rate =
                if took.is_zero() { String::new() } else { format!(" in {:.1} s", took.as_secs_f64()) };
            let (rows, bytes) = (grouped(self.rows), size(self.bytes));
            self.note(&format!("up to date: {rows} rows, {bytes}{rate}; changes follow"));
        }
        Ok(())
    }

    /// The shape is another now.
    pub(super) fn start_over(&mut self) -> Result<(), TailError> {
        if self.json {
            let mut out = io::stdout().lock();
            out.write_all(b"{\"headers\":{\"control\":\"must-refetch\"}}\n")?;
            out.flush()?;
        }
        (self.rows, self.bytes, self.is_live) = (0, 0, false);
        if let Some(progress) = &mut self.progress {
            progress.begun = Instant::now();
        }
        self.note("the shape was made anew: all rows come again");
        Ok(())
    }

    /// Something for people, beside the rows.
    pub(super) fn note(&mut self, what: &str) {
        self.clear();
        let note = self.beside.tone(Tone::Faint, &format!("forebay: {what}"));
        // That nobody reads it is no reason to end.
        let _closed = writeln!(io::stderr(), "{note}");
    }

    /// Takes the progress away, so that a line can stand in its place.
    fn clear(&mut self) {
        if self.progress.as_mut().is_some_and(|progress| progress.drawn.take().is_some()) {
            let _closed = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn progress_line(spinner: &str, rows: u64, bytes: u64, took: Duration) -> String {
    let a_second = (bytes as f64 / took.as_secs_f64().max(0.001)) as u64;
    format!("{spinner} {} rows, {}, {}/s", grouped(rows), size(bytes), size(a_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_rows_bytes_and_how_fast_they_come() {
        let line = progress_line("|", 1200, 2 << 20, Duration::from_secs(2));
        assert_eq!(line, "| 1,200 rows, 2.0 MiB, 1.0 MiB/s");
    }
}
