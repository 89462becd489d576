//! Ten thousand shapes: their creation, and the delay of a write that matches one of them. Also
//! streams of a server that crashes repeatedly.

mod crash;
mod create;
mod hit;

use anyhow::{Context, Result};
use forebay_sandbox::Postgres;
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use crate::harness::{ExperimentReport, Race, Scoreboard};
use crate::serving;

pub(crate) const RACE: Race = Race {
    name: "shapes",
    about: "10,000 shapes of `forebay serve`: creation, a matching write; streams across SIGKILL",
    cases: &[
        "create",
        "create_cpu",
        "create_memory",
        "hit",
        "hit_jsonb_equality",
        "hit_jsonb_containment",
        "hit_citext",
        "hit_enum",
        "hit_date_trunc",
        "hit_expression",
        "crash",
    ],
    run,
    child,
};

fn run(board: &mut Scoreboard) -> Result<()> {
    if ["create", "create_cpu", "create_memory"].iter().any(|case| board.is_selected(case)) {
        create::run(board)?;
    }
    hit::run(board)?;
    if board.is_selected("crash") {
        crash::run(board)?;
    }
    Ok(())
}

/// Creates a table with five rows in each of a number of groups.
fn create_table(postgres: &Postgres, table: &str, groups: u64) -> Result<()> {
    let sql = format!(
        "CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, team bigint, note text);
         INSERT INTO {table} (team, note) SELECT i % {groups}, repeat('x', 60) FROM generate_series(1, 5 * {groups}) i;
         CREATE INDEX ON {table} (team); ANALYZE {table}"
    );
    postgres.execute("postgres", &sql).with_context(|| format!("creating {table}"))
}

/// Returns the query parameters of the shape that has the rows of one group.
fn shape(table: &str, group: u64) -> String {
    format!("table={table}&where=team%3D{group}")
}

fn connect(runtime: &Runtime, postgres: &Postgres) -> Result<tokio_postgres::Client> {
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&postgres.url("postgres"), NoTls))?;
    runtime.spawn(connection);
    Ok(client)
}

fn child(experiment: &str) -> Result<ExperimentReport> {
    serving::child(&experiment.split(' ').collect::<Vec<_>>())
}
