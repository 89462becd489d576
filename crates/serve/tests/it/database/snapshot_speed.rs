//! Measurement: time and CPU of a snapshot, without the CPU of the server.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_serve::database::{RowSink, snapshot};
use rustix::time::{ClockId, clock_gettime};

use super::{Database, query};

struct CountingSink(u64);

impl RowSink for CountingSink {
    type Error = Infallible;

    async fn begin(&mut self, _snapshot: &Snapshot, _lsn: Lsn) -> Result<(), Infallible> {
        Ok(())
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), Infallible> {
        self.0 += messages.len() as u64;
        Ok(())
    }
}

/// Returns the CPU time of this process. The server is a separate process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it in release, alone"]
async fn reading_a_million_rows_is_measured() {
    let rows = 1_000_000;
    let database = Database::new(15, &format!(
        "CREATE TABLE t (id int8 PRIMARY KEY, name text, note text, price numeric(10, 2), at timestamptz, gone text, flag bool);
         INSERT INTO t SELECT i, 'customer ' || i, repeat('lorem ipsum ', 10), i / 100.0, now() + i * interval '1 s', NULL, i % 2 = 0
         FROM generate_series(1, {rows}) i"
    ));
    let table = database.describe("t").await;
    let all = table.all_columns();
    let length = database.value("SELECT avg(length(t::text)) FROM t");
    for _ in 0..3 {
        let (mut sink, begun, before) = (CountingSink(0), Instant::now(), cpu());
        let mut client = database.client().await;
        let summary = snapshot(&mut client, &query(&table, &all, None), &mut sink).await.unwrap();
        let (took, used) = (begun.elapsed(), cpu() - before);
        assert_eq!((summary.rows, summary.bytes), (rows, sink.0));
        eprintln!(
            "{rows} rows of {length} bytes, {} MiB of messages: {took:.2?}, {} ns of our CPU a row",
            sink.0 >> 20,
            used.as_nanos() / u128::from(rows),
        );
    }
}
