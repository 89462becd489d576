//! Statement cache of connections to a real Postgres server.

use forebay_quota::RateConfig;
use forebay_reservoir::{
    ConnectionGuard, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, Reset,
};
use forebay_sandbox::Postgres;
use forebay_testkit::TEST_TIMEOUT;

/// Starts a reservoir of one connection that caches two statements.
fn start(reset: Reset) -> Reservoir<PostgresClient> {
    let connect = PostgresConnect::builder(&Postgres::shared().url("postgres")).unwrap();
    let connect = connect.statement_cache(2).build().unwrap();
    let config = ReservoirConfig::new(1).reset(reset).checkout_timeout(TEST_TIMEOUT);
    Reservoir::start(connect, config, ConnectionLimits::local().rate(RateConfig::per_second(1e6))).unwrap()
}

/// Returns the statements of the session that begin with this text, by the server's records.
async fn prepared(client: &ConnectionGuard<PostgresClient>, prefix: &str) -> Vec<String> {
    let sql = "SELECT statement FROM pg_prepared_statements WHERE starts_with(statement, $1) ORDER BY 1";
    let rows = client.query(sql, &[&prefix]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn number(client: &ConnectionGuard<PostgresClient>, sql: &str) -> i32 {
    let statement = client.prepare_cached(sql).await.unwrap();
    client.query_one(&statement, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_cached_statement_is_prepared_once_and_outlives_its_caller() {
    let reservoir = start(Reset::Standard);
    for _ in 0..3 {
        let client = reservoir.checkout().await.unwrap();
        assert_eq!(number(&client, "SELECT 10 + 1").await, 11);
        assert_eq!(number(&client, "SELECT 10 + 1").await, 11);
        assert_eq!(prepared(&client, "SELECT 10").await, ["SELECT 10 + 1"]);
    }
}

#[tokio::test]
async fn a_full_cache_closes_the_least_recently_used_statement_on_the_server() {
    let reservoir = start(Reset::Standard);
    let client = reservoir.checkout().await.unwrap();
    for sql in ["SELECT 20 + 1", "SELECT 20 + 2", "SELECT 20 + 1", "SELECT 20 + 3"] {
        number(&client, sql).await;
    }
    assert_eq!(prepared(&client, "SELECT 20").await, ["SELECT 20 + 1", "SELECT 20 + 3"]);
    let held = client.prepare_cached("SELECT 20 + 4").await.unwrap();
    number(&client, "SELECT 20 + 5").await;
    number(&client, "SELECT 20 + 6").await;
    let row = client.query_one(&held, &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 24, "a statement that a caller holds stays open");
    client.clear_cached_statements();
    drop((held, row));
    assert!(prepared(&client, "SELECT 20").await.is_empty());
}

#[tokio::test]
async fn a_reset_that_drops_prepared_statements_clears_the_cache() {
    // The server refuses DISCARD ALL among other statements, as in a transaction.
    for script in ["DISCARD ALL", "ROLLBACK; DEALLOCATE ALL"] {
        let reservoir = start(Reset::Custom(script.into()));
        let mut backends = Vec::new();
        for _ in 0..2 {
            let client = reservoir.checkout().await.unwrap();
            assert!(prepared(&client, "SELECT 30").await.is_empty(), "{script}");
            assert_eq!(number(&client, "SELECT 30 + 1").await, 31, "{script}");
            backends.push(number(&client, "SELECT pg_backend_pid()").await);
        }
        assert_eq!(backends[0], backends[1], "{script}: it is the same connection");
    }
}

#[tokio::test]
async fn a_statement_that_fails_is_not_cached() {
    let reservoir = start(Reset::Standard);
    let client = reservoir.checkout().await.unwrap();
    assert!(client.prepare_cached("SELECT missing FROM nowhere").await.is_err());
    assert_eq!(number(&client, "SELECT 40 + 1").await, 41);
    assert!(prepared(&client, "SELECT missing").await.is_empty());
}
