//! Postgres' own program, which writes the bytes to /dev/null.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{DrainResult, DrainTask, NOTE_CHARS, PUBLICATION};

const MISSING: &str = "pg_recvlogical: script/bootstrap installs it with Postgres";

pub(super) fn drain(task: &DrainTask) -> Result<DrainResult> {
    let mut child = program(task, "/dev/null").stderr(Stdio::piped()).spawn().context(MISSING)?;
    let mut words = BufReader::new(child.stderr.take().context("stderr is piped")?);
    let (mut line, mut said) = (String::new(), String::new());
    let started = loop {
        line.clear();
        ensure!(words.read_line(&mut line)? > 0, "pg_recvlogical ended early: {said}");
        if line.contains("streaming initiated") {
            break Instant::now();
        }
        said += &line;
    };
    // What else it says must be read, or it would wait for that.
    for line in words.lines() {
        said += &line?;
    }
    let status = child.wait()?;
    ensure!(status.success(), "pg_recvlogical: {status}: {said}");
    Ok(DrainResult { wall: started.elapsed(), cpu: None })
}

/// Counts the rows that it writes. It writes no lengths, so rows are known by their notes.
pub(super) fn count_inserts(task: &DrainTask) -> Result<DrainResult> {
    count(task, 1)
}

/// Likewise: an update has the old row, too.
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
    ensure!(u64::is_multiple_of(notes, notes_per_row), "{notes} notes are not those of whole rows");
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
