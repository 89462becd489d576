//! Postgres' own program, which writes the bytes to /dev/null.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Drained, PUBLICATION, Terms};

pub(super) fn drain(terms: &Terms) -> Result<Drained> {
    let end = format!("{:X}/{:X}", terms.end >> 32, terms.end & 0xffff_ffff);
    let mut child = Command::new("pg_recvlogical")
        .args([
            "--dbname",
            &terms.url,
            "--slot",
            &terms.slot,
            "--start",
            "--endpos",
            &end,
            "--no-loop",
            "--verbose",
        ])
        .args(["--plugin", "pgoutput", "--option", "proto_version=1", "--file", "/dev/null"])
        .args(["--option", &format!("publication_names={PUBLICATION}")])
        .env("LC_ALL", "C")
        .stderr(Stdio::piped())
        .spawn()
        .context("pg_recvlogical: script/bootstrap installs it with Postgres")?;
    let mut words = BufReader::new(child.stderr.take().context("stderr is piped")?);
    let (mut line, mut said) = (String::new(), String::new());
    let began = loop {
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
    Ok(Drained { wall: began.elapsed(), cpu: None })
}
