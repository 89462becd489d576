//! Peer: the program `pg_recvlogical`. It writes the changes to /dev/null when it is timed, and to
//! a pipe when its rows are counted.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{DrainResult, DrainTask, NOTE_CHARS, PUBLICATION};

const MISSING: &str = "pg_recvlogical: script/bootstrap installs it with Postgres";

/// Drains the slot, and returns the time from the start of the stream until the program ended.
pub(super) fn drain(task: &DrainTask) -> Result<DrainResult> {
    let mut child = program(task, "/dev/null").stderr(Stdio::piped()).spawn().context(MISSING)?;
    let mut stderr = BufReader::new(child.stderr.take().context("stderr is piped")?);
    let (mut line, mut output) = (String::new(), String::new());
    let started = loop {
        line.clear();
        ensure!(stderr.read_line(&mut line)? > 0, "pg_recvlogical ended early: {output}");
        if line.contains("streaming initiated") {
            break Instant::now();
        }
        output += &line;
    };
    // The rest must be read, or the program would block when the pipe is full.
    for line in stderr.lines() {
        output += &line?;
    }
    let status = child.wait()?;
    ensure!(status.success(), "pg_recvlogical: {status}: {output}");
    Ok(DrainResult { wall: started.elapsed(), cpu: None })
}

/// Drains a slot of inserts, and verifies the number of rows.
///
/// The output has no boundaries between messages. So the notes are counted: each row has one, of
/// `NOTE_CHARS` times `x`.
pub(super) fn count_inserts(task: &DrainTask) -> Result<DrainResult> {
    count(task, 1)
}

/// Drains a slot of updates, and verifies the number of rows. An update has two notes: that of the
/// old row and that of the new one.
pub(super) fn count_updates(task: &DrainTask) -> Result<DrainResult> {
    count(task, 2)
}

fn count(task: &DrainTask, notes_per_row: u64) -> Result<DrainResult> {
    let started = Instant::now();
    let mut child =
        program(task, "-").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context(MISSING)?;
    let mut output = child.stdout.take().context("stdout is piped")?;
    let (mut buffer, mut run, mut notes) = (vec![0; 1 << 16], 0, 0);
    loop {
        let read = output.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        for byte in &buffer[..read] {
            run = if *byte == b'x' { run + 1 } else { 0 };
            if run == NOTE_CHARS {
                (run, notes) = (0, notes + 1);
            }
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "pg_recvlogical: {status}");
    ensure!(
        u64::is_multiple_of(notes, notes_per_row),
        "pg_recvlogical: {notes} notes, not a multiple of {notes_per_row}"
    );
    task.check("pg_recvlogical", notes / notes_per_row)?;
    Ok(DrainResult { wall: started.elapsed(), cpu: None })
}

fn program(task: &DrainTask, file: &str) -> Command {
    let end = format!("{:X}/{:X}", task.end >> 32, task.end & 0xffff_ffff);
    let mut program = Command::new("pg_recvlogical");
    program
        .args(["--dbname", &task.url, "--slot", &task.slot, "--start", "--endpos", &end])
        .args(["--no-loop", "--verbose", "--plugin", "pgoutput", "--file", file])
        .args(["--option", "proto_version=1", "--option", &format!("publication_names={PUBLICATION}")])
        .env("LC_ALL", "C");
    program
}
