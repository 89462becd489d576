//! Asks the database; `judging.rs` says what the answers mean.

use std::collections::HashMap;
use std::time::Duration;

use forebay_replication::ManagerOutline;
use forebay_replication::reservoir::tokio_postgres::SimpleQueryMessage;
use forebay_replication::reservoir::{
    Connect as _, PostgresClient, PostgresConnect, ReservoirConnection as _,
};
use tokio::time::timeout;

use super::finding::{Area, Finding};
use super::judging::{self, Wanted};
use super::trips;
use crate::config::ServeConfig;
use crate::terminal::escape_controls as shown;

const AREA: Area = Area::Postgres;
/// A question that takes longer won't be answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the server said, by the names of the columns.
pub(super) type Row = HashMap<String, String>;

pub(super) async fn check(config: &ServeConfig) -> Vec<Finding> {
    let outline = config.manager.outline();
    let wanted = Wanted {
        slot: outline.slot,
        publication: outline.publication,
        manual_publication: outline.manual_publication,
        pool_size: outline.pool_size,
        most_connections: config.max_connections,
        is_pooled: outline.pooled.is_some(),
    };
    let mut findings = match open(outline.connect).await {
        Err(why) => vec![unreachable("reachable", outline.connect, "database.url", &why)],
        Ok(client) => {
            let mut findings = direct(&client, &outline, &wanted).await;
            if timeout(PATIENCE, client.close()).await.is_err() {
                findings.push(slow("closing the connection"));
            }
            findings
        }
    };
    if let Some(pooled) = outline.pooled {
        findings.push(through_pooler(pooled).await);
    }
    findings
}

async fn direct(client: &PostgresClient, outline: &ManagerOutline<'_>, wanted: &Wanted<'_>) -> Vec<Finding> {
    let about = match ask(client, judging::ABOUT).await {
        Ok(mut rows) if !rows.is_empty() => rows.remove(0),
        Ok(_) => return vec![slow("asking what the server is")],
        Err(why) => return vec![unanswered("about", &why)],
    };
    let place = format!(
        "{} as {}, database {}",
        client.address(),
        outline.connect.user(),
        outline.connect.database()
    );
    let mut findings = judging::server(&about, &place, wanted);
    findings.push(judging::tls(&about, outline.connect.ssl_mode(), &outline.connect.endpoint()));
    findings.extend(trips(client).await);
    for (check, sql, judge) in [
        ("tables", judging::tables_sql(), judging::tables as Judge),
        ("slot", judging::slot_sql(wanted), judging::slot),
        ("publication", judging::publication_sql(wanted), judging::publication),
    ] {
        match ask(client, &sql).await {
            Ok(rows) => findings.extend(judge(rows.first(), &about, wanted)),
            Err(why) => findings.push(unanswered(check, &why)),
        }
    }
    findings
}

type Judge = fn(Option<&Row>, &Row, &Wanted<'_>) -> Vec<Finding>;

async fn trips(client: &PostgresClient) -> Vec<Finding> {
    let now_ms = async || {
        let rows =
            ask(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms").await?;
        Ok::<_, String>(rows.first().and_then(|row| row.get("now_ms")?.parse().ok()))
    };
    trips::measure(AREA, now_ms).await.unwrap_or_else(|why| vec![unanswered("latency", &why)])
}

async fn through_pooler(pooled: &PostgresConnect) -> Finding {
    const CHECK: &str = "pooled";
    match open(pooled).await {
        Err(why) => unreachable(CHECK, pooled, "database.pooled_url", &why),
        Ok(client) => {
            let asked = ask(&client, "SELECT 1 AS one").await;
            let _late = timeout(PATIENCE, client.close()).await;
            match asked {
                Ok(_) => Finding::ok(AREA, CHECK, format!("queries go through {}", pooled.endpoint())),
                Err(why) => unanswered(CHECK, &why),
            }
        }
    }
}

async fn open(connect: &PostgresConnect) -> Result<PostgresClient, String> {
    let credentials = connect.credentials().await.map_err(|error| error.to_string())?;
    connect.connect(credentials).await.map_err(|error| error.to_string())
}

async fn ask(client: &PostgresClient, sql: &str) -> Result<Vec<Row>, String> {
    let asked = timeout(PATIENCE, client.simple_query(sql)).await;
    let messages = asked.map_err(|_| format!("no answer within {PATIENCE:?}"))?.map_err(|error| {
        // The server's own words only: the client's would repeat the question.
        error.as_db_error().map_or_else(|| error.to_string(), |said| said.message().to_owned())
    })?;
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

fn unreachable(check: &'static str, connect: &PostgresConnect, key: &str, why: &str) -> Finding {
    let what = format!("can't connect as {}: {}", connect.user(), shown(why));
    let advice = format!("see that the server can be reached from here, and that {key} is right");
    Finding::fail(AREA, check, what, advice)
}

fn unanswered(check: &'static str, why: &str) -> Finding {
    let what = format!("the server didn't say what was asked ({check}): {}", shown(why));
    Finding::warn(AREA, check, what, "try again; if it stays so, the user's rights are narrower than usual")
}

fn slow(what: &str) -> Finding {
    let advice = "the server hangs, or something in between does: see its log";
    Finding::fail(AREA, "answers", format!("{what} took longer than {PATIENCE:?}"), advice)
}
