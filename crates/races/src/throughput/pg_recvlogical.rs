//! Peer: the program `pg_recvlogical`, which writes the changes to a pipe.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forebay_sandbox::Postgres;

use super::{ThroughputSample, count};

/// Writes the rows, and reads them from the pipe.
pub(super) fn follow(
    postgres: &Postgres,
    table: &str,
    rows: u64,
    write: impl FnOnce() -> Result<()>,
) -> Result<ThroughputSample> {
    let sql = |sql: String| postgres.execute("postgres", &sql).context(sql);
    sql(format!("CREATE PUBLICATION {table} FOR TABLE {table}"))?;
    sql(format!("SELECT pg_create_logical_replication_slot('{table}', 'pgoutput')"))?;
    let mut program = RecvLogicalProcess(
        Command::new("pg_recvlogical")
            .args([
                "--dbname",
                &postgres.url("postgres"),
                "--slot",
                table,
                "--start",
                "--no-loop",
                "--verbose",
            ])
            .args(["--plugin", "pgoutput", "--option", "proto_version=1", "--file", "-"])
            .args(["--option", &format!("publication_names={table}")])
            .env("LC_ALL", "C")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("pg_recvlogical: script/bootstrap installs it with Postgres")?,
    );
    let mut output = program.0.stdout.take().context("stdout is piped")?;
    let mut stderr = BufReader::new(program.0.stderr.take().context("stderr is piped")?);
    let mut line = String::new();
    while !line.contains("streaming initiated") {
        line.clear();
        ensure!(stderr.read_line(&mut line)? > 0, "pg_recvlogical ended early");
    }
    let started = Instant::now();
    let end = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut bytes, mut received) = (vec![0; 256 * 1024], 0);
            while received < rows {
                let read = output.read(&mut bytes)?;
                ensure!(read > 0, "pg_recvlogical ended after {received} rows");
                received += count(&bytes[..read]);
            }
            Ok(Instant::now())
        });
        write()?;
        reader.join().expect("a reader returns its errors")
    })?;
    drop(program);
    crate::replication::drop_slot(postgres, "postgres", table)?;
    Ok(ThroughputSample { wall: end - started, cpu_ns: None })
}

/// Process of `pg_recvlogical`. Killed on drop.
struct RecvLogicalProcess(Child);

impl Drop for RecvLogicalProcess {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
