//! Connects to the database and runs the queries. `postgres_server.rs` and `postgres_objects.rs`
//! evaluate the rows.

use std::time::Duration;

use forebay_replication::DatabaseSettings;
use forebay_replication::reservoir::tokio_postgres::SimpleQueryMessage;
use forebay_replication::reservoir::{
    Connect as _, ConnectionError, PostgresClient, PostgresConnect, ReservoirConnection as _, tokio_postgres,
};
use tokio::time::timeout;

use super::catalog_row::CatalogRow;
use super::finding::{CheckArea, Finding};
use super::postgres_server::DatabaseRequirements;
use super::{postgres_objects, postgres_server, round_trips};
use crate::config::ServeConfig;
use crate::terminal::escape_controls;

const AREA: CheckArea = CheckArea::Postgres;
/// Timeout of each query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the database, and the pooler if there is one.
pub(super) async fn check(config: &ServeConfig) -> Vec<Finding> {
    let outline = config.manager.outline();
    let requirements = DatabaseRequirements {
        slot: outline.slot,
        publication: outline.publication,
        manual_publication: outline.manual_publication,
        pool_size: outline.pool_size,
        max_pool_connections: outline.max_pool_connections,
        most_connections: config.max_connections,
        is_pooled: outline.pooled.is_some(),
    };
    let mut findings = match connect_to(outline.connect).await {
        Err(error) => vec![unreachable("reachable", outline.connect, "database.url", &error)],
        Ok(client) => {
            let mut findings = check_direct(&client, &outline, &requirements).await;
            if timeout(QUERY_TIMEOUT, client.close()).await.is_err() {
                findings.push(slow("closing the connection"));
            }
            findings
        }
    };
    if let Some(pooled) = outline.pooled {
        findings.push(check_pooler(pooled).await);
    }
    findings
}

/// Runs all checks over a direct connection.
async fn check_direct(
    client: &PostgresClient,
    outline: &DatabaseSettings<'_>,
    requirements: &DatabaseRequirements<'_>,
) -> Vec<Finding> {
    let about = match query(client, postgres_server::ABOUT).await {
        Ok(mut rows) if !rows.is_empty() => rows.remove(0),
        Ok(_) => return vec![slow("the query for the server's version and settings")],
        Err(error) => return vec![query_failed("about", &error)],
    };
    let target = format!(
        "{} as {}, database {}",
        client.address(),
        outline.connect.user(),
        outline.connect.database()
    );
    let mut findings = postgres_server::server(&about, &target, requirements);
    findings.push(postgres_server::tls(&about, outline.connect.ssl_mode(), &outline.connect.endpoint()));
    findings.extend(round_trips(client).await);
    for (check, sql, evaluate) in [
        ("tables", postgres_objects::tables_sql(), postgres_objects::tables as RowEvaluator),
        ("slot", postgres_objects::slot_sql(requirements), postgres_objects::slot),
        ("publication", postgres_objects::publication_sql(requirements), postgres_objects::publication),
    ] {
        match query(client, &sql).await {
            Ok(rows) => findings.extend(evaluate(rows.first(), &about, requirements)),
            Err(error) => findings.push(query_failed(check, &error)),
        }
    }
    findings
}

/// Function that evaluates the first row of a query. The second row is the one about the server.
type RowEvaluator = fn(Option<&CatalogRow>, &CatalogRow, &DatabaseRequirements<'_>) -> Vec<Finding>;

/// Measures the round trips and the clock of the server.
async fn round_trips(client: &PostgresClient) -> Vec<Finding> {
    let now_ms = async || {
        let rows =
            query(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms").await?;
        Ok::<_, ProbeError>(rows.first().and_then(|row| row.get("now_ms")?.parse().ok()))
    };
    round_trips::measure(AREA, now_ms).await.unwrap_or_else(|error| vec![query_failed("latency", &error)])
}

/// Checks that queries work through the pooler.
async fn check_pooler(pooled: &PostgresConnect) -> Finding {
    const CHECK: &str = "pooled";
    match connect_to(pooled).await {
        Err(error) => unreachable(CHECK, pooled, "database.pooled_url", &error),
        Ok(client) => {
            let result = query(&client, "SELECT 1 AS one").await;
            let _late = timeout(QUERY_TIMEOUT, client.close()).await;
            match result {
                Ok(_) => Finding::ok(AREA, CHECK, format!("queries work through {}", pooled.endpoint())),
                Err(error) => query_failed(CHECK, &error),
            }
        }
    }
}

/// Why a connection or a query failed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Connect(#[from] ConnectionError),
    #[error("no answer within {QUERY_TIMEOUT:?}")]
    Timeout,
    #[error("{}", server_message(.0))]
    Query(#[from] tokio_postgres::Error),
}

/// Returns only the message of the server: the error of the client would contain the query.
fn server_message(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db_error| db_error.message().to_owned())
}

async fn connect_to(connect: &PostgresConnect) -> Result<PostgresClient, ProbeError> {
    let credentials = connect.credentials().await?;
    Ok(connect.connect(credentials).await?)
}

async fn query(client: &PostgresClient, sql: &str) -> Result<Vec<CatalogRow>, ProbeError> {
    let result = timeout(QUERY_TIMEOUT, client.simple_query(sql)).await;
    let messages = result.map_err(|_| ProbeError::Timeout)??;
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let named = rows.map(|row| {
        let columns = row.columns().iter().enumerate();
        columns.filter_map(|(at, column)| Some((column.name().to_owned(), row.get(at)?.to_owned()))).collect()
    });
    Ok(named.collect())
}

fn unreachable(check: &'static str, connect: &PostgresConnect, key: &str, error: &ProbeError) -> Finding {
    let what = format!("can't connect as {}: {}", connect.user(), escape_controls(&error.to_string()));
    let advice = format!("check that the server can be reached from here, and that {key} is correct");
    Finding::fail(AREA, check, what, advice)
}

fn query_failed(check: &'static str, error: &ProbeError) -> Finding {
    let what = format!("the query for {check} failed: {}", escape_controls(&error.to_string()));
    Finding::warn(AREA, check, what, "try again; if it fails again, the user lacks a common privilege")
}

fn slow(what: &str) -> Finding {
    let advice = "the server or the network hangs: see the log of the server";
    Finding::fail(AREA, "answers", format!("{what} took longer than {QUERY_TIMEOUT:?}"), advice)
}
