//! A transaction that is larger than the memory that the server may use.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::support::{ServeFixture, path};
use crate::many_streams::MANY_CONNECTIONS_LOCK;
use crate::wire::HttpConnection;

const SHAPES: usize = 100;
/// Rows of 100 KiB.
const ROWS: usize = 3_000;
/// Limit on resident memory, in KiB: queued writes, unwritten logs, a batch of the stream, and the
/// rest of the process.
const MAX_KIB: u64 = 200 << 10;
/// Maximum duration: ten times the usual one.
const TIMEOUT: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_300_megabytes_that_a_hundred_shapes_match_is_never_in_memory() {
    let _alone = MANY_CONNECTIONS_LOCK.lock().await;
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY, note text)");
    let serve = fixture.serve().await;
    // These clauses are not indexed, so the server evaluates each change for each shape. The shapes
    // select one small column, because all logs are on one disk.
    let clauses: Vec<_> = (1..=SHAPES).map(|number| format!("id + {number} > 0")).collect();
    for clause in &clauses {
        serve.reader(&[("table", "items"), ("where", clause), ("columns", "id")]).await;
    }
    let all = serve.reader(&[("table", "items")]).await;
    let live = path(&[all.params(), vec![("live", "true"), ("live_sse", "true")]].concat());
    let mut stream = HttpConnection::get(serve.addr, &live, &[]).await;
    assert_eq!(stream.head().await.status, 200);
    let following = tokio::spawn(async move {
        let mut bytes = 0;
        while bytes < ROWS * 100 * 1024 {
            bytes += stream.chunk().await.expect("the stream stays open").len();
        }
    });

    let (postgres, database) = (fixture.postgres, fixture.database.clone());
    let insert =
        format!("INSERT INTO items SELECT n, repeat(md5(n::text), 3200) FROM generate_series(1, {ROWS}) n");
    let writing = std::thread::spawn(move || postgres.execute(&database, &insert));
    let (started, mut most_kib) = (Instant::now(), 0);
    while !following.is_finished() {
        assert!(started.elapsed() < TIMEOUT, "{most_kib} KiB");
        most_kib = most_kib.max(serve.resident_kib());
        sleep(Duration::from_millis(10)).await;
    }
    writing.join().unwrap().unwrap();
    following.await.unwrap();
    for clause in [&clauses[0], &clauses[SHAPES - 1]] {
        let count = serve.reader(&[("table", "items"), ("where", clause), ("columns", "id")]).await;
        assert_ne!(count.offset, "0_inf");
    }
    eprintln!("at most {} MiB, in {:?}", most_kib >> 10, started.elapsed());
    assert!(most_kib < MAX_KIB, "{} MiB", most_kib >> 10);
}
