//! Row judgement: has Postgres evaluate a shape's clause on rows that the stream delivered.
//!
//! Invariant: the clause has the value that it has in a snapshot. A row on which it fails doesn't
//! change the outcome of another.
//! Enforced by: the values become rows of a subquery whose columns have the table's types and
//! collations, and the session has the settings of snapshots. The clause is a WHERE clause in both.
//! If a statement fails, its rows are evaluated in smaller parts, and at last one by one. An error
//! that depends on no row, such as that of a dropped function, rejects the clause instead: the
//! statement fails without rows, too.
//! Out of scope: which rows, when, and what follows from an error; see `clause_judge.rs`.
//!
//! A domain's values become values of its base type, which has the same operators: the values were
//! accepted once, and a constraint that was added since would reject them.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::error::SqlState;
use forebay_replication::reservoir::tokio_postgres::types::{ToSql, Type};
use forebay_replication::reservoir::tokio_postgres::{self, Client};
use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_shapes::TableSchema;
use tokio::time::{Instant, timeout};

use super::quote_identifier;
use super::server_message;
use super::snapshot::reading_settings;

/// Rows of a part after a statement has failed.
const PART_ROWS: usize = 32;
/// Maximum number of statements of one judgement. The rows that they leave are judged later.
const MAX_STATEMENTS: usize = 16;
/// Maximum number of statements of one judgement that exceed the time limit.
const MAX_TIMEOUTS: u32 = 3;
/// How much longer than the server's time limit a reply may take.
const REPLY_GRACE: Duration = Duration::from_secs(5);

/// Outcome of a clause on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome {
    /// It is true.
    True,
    /// It is false or NULL.
    NotTrue,
    /// It fails.
    Failed,
}

/// Why rows couldn't be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JudgementError {
    /// The clause takes too long on a row, or on many.
    #[error("Postgres took longer than the {} ms that it may for a statement", .limit.as_millis())]
    TooSlow {
        /// Time limit of a statement.
        limit: Duration,
    },
    /// Postgres rejects the clause, whatever the row: the table, one of its types or a privilege
    /// was altered.
    #[error("Postgres rejects the clause: {}", error_code(.0))]
    Rejected(#[source] tokio_postgres::Error),
    /// The table doesn't have the columns that the clause uses.
    #[error("the table was altered")]
    Altered,
    /// No reply arrived in time.
    #[error("Postgres didn't reply")]
    NoReply,
    /// The query failed.
    #[error("the statement failed: {}", error_code(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// Outcomes of a clause on rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The outcome on each row. `None`: the row wasn't evaluated, because the judgement has used
    /// all its statements.
    pub outcomes: Vec<Option<RowOutcome>>,
    /// Number of statements.
    pub statements: usize,
}

/// A statement that evaluates a clause on rows.
#[derive(Debug, Clone)]
pub struct JudgementStatement {
    sql: String,
    /// Number of columns that the clause uses.
    columns: usize,
}

/// Reads the types and collations of columns: qualified names. The collation is NULL if it is the
/// database's default. 100 is the oid of that collation.
const COLUMNS_SQL: &str = "
SELECT quote_ident(tn.nspname) || '.' || quote_ident(t.typname), quote_ident(cn.nspname) || '.' || quote_ident(c.collname)
FROM unnest($2::int8[], $3::int4[]) WITH ORDINALITY AS used (type, number, place)
JOIN pg_type t ON t.oid = used.type::oid JOIN pg_namespace tn ON tn.oid = t.typnamespace
JOIN pg_attribute a ON a.attrelid = $1::int8::oid AND a.attnum = used.number AND NOT a.attisdropped
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.oid <> 100
LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
ORDER BY used.place";

impl JudgementStatement {
    /// Returns the statement for a clause in canonical form that uses these columns.
    ///
    /// # Errors
    /// Fails if the catalog can't be read, or the table doesn't have these columns.
    pub async fn new(
        client: &Client,
        table: &TableSchema,
        columns: &[usize],
        clause: &str,
    ) -> Result<Self, JudgementError> {
        let of_columns = || columns.iter().filter_map(|index| table.types.columns.get(*index));
        let types: Vec<i64> = of_columns().map(|column| i64::from(column.column_type.oid)).collect();
        let numbers: Vec<i32> =
            columns.iter().filter_map(|index| table.numbers.get(*index).copied()).collect();
        let (oid, int8s, int4s) = (i64::from(table.oid), Type::INT8_ARRAY, Type::INT4_ARRAY);
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&oid, Type::INT8), (&types, int8s), (&numbers, int4s)];
        let read = client.query_typed(COLUMNS_SQL, &parameters).await.map_err(JudgementError::Database)?;
        if read.len() != columns.len() || types.len() != columns.len() {
            return Err(JudgementError::Altered);
        }
        let mut casts = Vec::new();
        for row in read {
            let text = |index| row.try_get::<_, Option<String>>(index).map_err(JudgementError::Database);
            casts.push((text(0)?.ok_or(JudgementError::Altered)?, text(1)?));
        }
        let names: Vec<&str> = of_columns().map(|column| column.name.as_str()).collect();
        let alias = table.types.table.as_deref().unwrap_or(&table.name);
        Ok(JudgementStatement { sql: statement(alias, &names, &casts, clause), columns: columns.len() })
    }

    /// Evaluates the clause on rows. A row has a text for each column that the clause uses.
    ///
    /// After an error, the connection is marked bad unless it can be used again.
    ///
    /// # Errors
    /// See [`JudgementError`].
    pub async fn judge(
        &self,
        client: &mut ConnectionGuard<PostgresClient>,
        rows: &[Vec<Option<String>>],
        limit: Duration,
    ) -> Result<Judgement, JudgementError> {
        let (mut timeouts, mut is_accepted, begun) = (0, false, Instant::now());
        let mut judgement = Judgement { outcomes: vec![None; rows.len()], statements: 0 };
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut next = Some(0..rows.len());
        while let Some(part) = next.take().or_else(|| parts.pop()) {
            // Many statements, none of which is too slow by itself, take long, too.
            let is_late = begun.elapsed() > limit * MAX_TIMEOUTS;
            let has_outcomes = judgement.outcomes.iter().any(Option::is_some);
            if judgement.statements >= MAX_STATEMENTS || (is_late && has_outcomes) {
                break;
            }
            if is_late {
                return Err(JudgementError::TooSlow { limit });
            }
            judgement.statements += 1;
            let failure = match self.run(client, &rows[part.clone()], limit).await {
                Ok(matching) => {
                    judgement.outcomes[part.clone()].fill(Some(RowOutcome::NotTrue));
                    for index in matching.into_iter().filter_map(|index| usize::try_from(index).ok()) {
                        judgement.outcomes[part.start + index] = Some(RowOutcome::True);
                    }
                    continue;
                }
                Err(error) => StatementFailure::of(error)?,
            };
            if failure == StatementFailure::RowOrClause && !is_accepted {
                judgement.statements += 1;
                self.run(client, &[], limit).await.map_err(JudgementError::without_rows)?;
                is_accepted = true;
            }
            let smaller = match (failure, part.len()) {
                (StatementFailure::Row | StatementFailure::RowOrClause, 0 | 1) => {
                    judgement.outcomes[part].fill(Some(RowOutcome::Failed));
                    continue;
                }
                (StatementFailure::TooSlow, _) if timeouts + 1 >= MAX_TIMEOUTS => {
                    return Err(JudgementError::TooSlow { limit });
                }
                (StatementFailure::TooSlow, 0 | 1) => return Err(JudgementError::TooSlow { limit }),
                (_, rows) if rows > PART_ROWS => PART_ROWS,
                (_, _) => 1,
            };
            timeouts += u32::from(failure == StatementFailure::TooSlow);
            // The first part is the next one: transactions wait in their order.
            let starts = part.clone().step_by(smaller).rev();
            parts.extend(starts.map(|start| start..part.end.min(start + smaller)));
        }
        Ok(judgement)
    }

    /// Returns the positions of the rows for which the clause is true.
    async fn run(
        &self,
        client: &mut ConnectionGuard<PostgresClient>,
        rows: &[Vec<Option<String>>],
        limit: Duration,
    ) -> Result<Vec<i32>, JudgementError> {
        let numbers: Vec<i32> = (0..).take(rows.len()).collect();
        let value = |row: &Vec<Option<String>>, column: usize| row.get(column).cloned().flatten();
        let columns: Vec<Vec<Option<String>>> =
            (0..self.columns).map(|column| rows.iter().map(|row| value(row, column)).collect()).collect();
        let mut parameters: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&numbers, Type::INT4_ARRAY)];
        parameters.extend(columns.iter().map(|texts| (texts as _, Type::TEXT_ARRAY)));
        let begin = beginning(limit);
        let replies = async {
            // All are sent at once. If one fails, the rest fail, too.
            tokio::join!(
                biased;
                client.batch_execute(&begin),
                client.query_typed(&self.sql, &parameters),
                client.batch_execute("ROLLBACK"),
            )
        };
        let replied = timeout(limit + REPLY_GRACE, replies).await;
        let Ok((begun, found, ended)) = replied else {
            client.mark_bad();
            return Err(JudgementError::NoReply);
        };
        if let Err(error) = ended {
            client.mark_bad();
            return Err(JudgementError::Database(error));
        }
        begun.map_err(JudgementError::Database)?;
        let found = found.map_err(JudgementError::Database)?;
        found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(JudgementError::Database)
    }
}

/// Why a statement failed, if a smaller one may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatementFailure {
    /// The clause fails on a row.
    Row,
    /// The clause fails on a row, or Postgres rejects it. A format in a row, such as that of
    /// `to_char`, has the same errors as a wrong statement.
    RowOrClause,
    /// The statement took too long, or too much memory.
    TooSlow,
}

impl StatementFailure {
    fn of(error: JudgementError) -> Result<Self, JudgementError> {
        let JudgementError::Database(error) = error else { return Err(error) };
        let Some(code) = error.code().cloned() else { return Err(JudgementError::Database(error)) };
        let is_of = |classes: &[&str]| classes.iter().any(|class| code.code().starts_with(class));
        match code {
            SqlState::QUERY_CANCELED | SqlState::OUT_OF_MEMORY => Ok(StatementFailure::TooSlow),
            _ if is_of(&["42"]) => Ok(StatementFailure::RowOrClause),
            // Errors of connections, transactions, resources and the server.
            _ if is_of(&["08", "25", "28", "40", "53", "55", "57", "58"]) => {
                Err(JudgementError::Database(error))
            }
            _ => Ok(StatementFailure::Row),
        }
    }
}

impl JudgementError {
    /// Returns the error of a statement that had no rows.
    fn without_rows(self) -> Self {
        match self {
            JudgementError::Database(error)
                if error.code().is_some_and(|code| code.code().starts_with("42")) =>
            {
                JudgementError::Rejected(error)
            }
            error => error,
        }
    }
}

/// Returns the SQLSTATE of a server's error. Its message may quote a row's value.
fn error_code(error: &tokio_postgres::Error) -> String {
    match error.code() {
        Some(code) => format!("SQLSTATE {}", code.code()),
        None => server_message(error),
    }
}

/// Returns the statements before the judgement's own.
fn beginning(limit: Duration) -> String {
    let mut script = String::from("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY");
    let limit_ms = limit.as_millis().to_string();
    let mut set = |key: &str, value: &str| {
        write!(script, "; SET LOCAL {key} TO '{value}'").expect("a String accepts every write");
    };
    reading_settings().for_each(|(key, value)| set(key, value));
    set("statement_timeout", &limit_ms);
    script
}

/// Returns the statement. Its first parameter has the rows' numbers, and each further one the texts
/// of a column.
///
/// OFFSET 0 keeps the planner from moving the clause into the subquery: there, a comparison of a
/// column would be one of the expression that makes the column.
fn statement(alias: &str, names: &[&str], casts: &[(String, Option<String>)], clause: &str) -> String {
    let mut number = "row_number".to_owned();
    while names.contains(&number.as_str()) {
        number.push('_');
    }
    let (mut selected, mut arrays, mut values) =
        (format!("given.n AS {number}"), "$1::int4[]".to_owned(), "n".to_owned());
    for (index, (name, (type_name, collation))) in names.iter().zip(casts).enumerate() {
        let collate = collation.iter().map(|name| format!(" COLLATE {name}")).collect::<String>();
        let name = quote_identifier(name);
        write!(selected, ", given.v{index}::{type_name}{collate} AS {name}")
            .and_then(|()| write!(arrays, ", ${}::text[]", index + 2))
            .and_then(|()| write!(values, ", v{index}"))
            .expect("a String accepts every write");
    }
    let alias = quote_identifier(alias);
    format!(
        "SELECT {number} FROM (SELECT {selected} FROM unnest({arrays}) AS given ({values}) OFFSET 0) AS {alias} \
         WHERE {clause}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_column_hides_the_rows_number_or_is_named_without_quotes() {
        let casts = [
            ("pg_catalog.int4".to_owned(), None),
            ("pg_catalog.text".to_owned(), Some("a.\"B\"".to_owned())),
        ];
        let sql = statement("it\"ems", &["row_number", "na\"me"], &casts, "(true)");
        assert_eq!(
            sql,
            "SELECT row_number_ FROM (SELECT given.n AS row_number_, given.v0::pg_catalog.int4 AS \"row_number\", \
             given.v1::pg_catalog.text COLLATE a.\"B\" AS \"na\"\"me\" FROM unnest($1::int4[], $2::text[], $3::text[]) \
             AS given (n, v0, v1) OFFSET 0) AS \"it\"\"ems\" WHERE (true)"
        );
    }

    #[test]
    fn a_judgement_has_the_settings_of_snapshots() {
        let script = beginning(Duration::from_millis(50));
        for setting in ["search_path TO 'pg_catalog'", "DateStyle TO 'ISO, DMY'", "statement_timeout TO '50'"]
        {
            assert!(script.contains(&format!("; SET LOCAL {setting}")), "{script}");
        }
        assert!(script.contains("standard_conforming_strings TO 'on'") && script.contains("READ ONLY"));
    }
}
