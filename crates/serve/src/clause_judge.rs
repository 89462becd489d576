//! Clause judge: asks Postgres about rows that a shape's clause leaves undecided.
//!
//! Invariant: other shapes never wait for a judgement. A shape whose clause takes too long, or that
//! Postgres rejects, is deleted by name, and its clients start over. While the database is away,
//! the shape waits, for as long as the store holds its changes.
//! Enforced by: the store passes only rows of held shapes (`Shapes::undecided_rows`). A task gives
//! rows back before it waits for the next attempt. Shapes take turns: see [`FairTurns`].
//! Out of scope: what a verdict changes; see `forebay_shapes`.
//!
//! Bounds: [`workers`] judgements at once, on connections for metadata. A shape has at most one.
//! Each statement has at most [`STATEMENT_TIMEOUT`] and the rows of one batch. [`StatementRate`]
//! bounds the statements per second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{Manager, PoolError};
use forebay_shapes::filter::{Filter, RowVerdict};
use forebay_shapes::{Shape, Shapes, UndecidedRows};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::database::{Judgement, JudgementError, JudgementStatement, RowOutcome};
use super::metrics;
use super::statement_rate::{FairTurns, StatementRate};

/// Maximum number of judgements at once.
const MAX_WORKERS: u32 = 2;
/// Maximum duration of a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of times that Postgres may reject a shape's clause. The first may be caused by a type
/// that was renamed.
const MAX_REJECTIONS: u32 = 3;
/// Number of judgements of a shape that may take too long, one after the other. The first may be
/// caused by the load of the server.
const MAX_TIMEOUTS: u32 = 2;
/// Number of statements for a shape that may end without an answer, one after the other: their
/// connection was lost, or the server has no resources. With the wait between attempts, a restart
/// of the server takes far fewer.
const MAX_FAILURES: u32 = 30;
/// Maximum number of shapes whose statements are cached.
const MAX_CACHED: usize = 10_000;
/// Wait after the first failed attempt. It doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Maximum wait after a failed attempt.
const MAX_RETRY: Duration = Duration::from_secs(2);

/// Judges the undecided rows of all shapes.
#[derive(Debug)]
pub(crate) struct ClauseJudge {
    shapes: Shapes,
    manager: Manager,
    /// Whether clauses may have conditions that only Postgres can evaluate.
    is_enabled: bool,
    rate: StatementRate,
    /// By the shape's handle.
    judged: Mutex<HashMap<String, JudgedShape>>,
}

/// What the judge keeps of a shape.
#[derive(Debug, Clone, Default)]
struct JudgedShape {
    statement: Option<Arc<JudgementStatement>>,
    /// Number of times that Postgres has rejected the clause since the last success.
    rejections: u32,
    /// Number of statements that ended without an answer since the last success.
    failures: u32,
    /// Number of judgements that took too long since the last success.
    timeouts: u32,
    turns: FairTurns,
}

/// Why rows weren't judged.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{0}")]
    Pool(#[from] PoolError),
    #[error("{0}")]
    Judgement(#[from] JudgementError),
}

impl ClauseJudge {
    pub(crate) fn new(shapes: Shapes, manager: Manager, is_enabled: bool, statements_per_s: u32) -> Self {
        let rate = StatementRate::new(statements_per_s);
        ClauseJudge { shapes, manager, is_enabled, rate, judged: Mutex::default() }
    }

    /// Judges rows, one batch after the other, for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut failures = 0;
        loop {
            let rows = self.shapes.undecided_rows().await;
            if self.passes(rows.shape().handle()) {
                // The rows are the last in the queue now.
                drop(rows);
                yield_now().await;
                continue;
            }
            let shape = Arc::clone(rows.shape());
            match self.judge(rows).await {
                Ok(()) => failures = 0,
                Err(AttemptError::Judgement(
                    error @ (JudgementError::TooSlow { .. } | JudgementError::Rejected(_)),
                )) => {
                    warn!(handle = shape.handle(), %error, "rows not judged: tried again");
                    sleep(retry_after(0)).await;
                }
                Err(error) => {
                    // Only the first failure of an outage is logged.
                    if failures == 0 {
                        warn!(%error, "rows not judged: shapes wait for the database");
                    }
                    sleep(retry_after(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Decides rows, or deletes their shape.
    ///
    /// # Errors
    /// Fails if a later attempt may succeed. Then the rows are in the queue again.
    async fn judge(&self, rows: UndecidedRows) -> Result<(), AttemptError> {
        let shape = Arc::clone(rows.shape());
        if !self.is_enabled && shape.filter().is_some_and(Filter::needs_postgres) {
            self.give_up(rows, "serve.postgres_clauses is off");
            return Ok(());
        }
        self.rate.wait().await;
        let _awake = self.manager.keep_awake();
        let begun = Instant::now();
        let attempt = self.ask(&shape, &rows).await;
        let judgement = attempt.as_ref().ok();
        metrics::judgement_ended(judgement.map(|judged| &judged.outcomes[..]), begun.elapsed());
        if !matches!(attempt, Err(AttemptError::Pool(_))) {
            let statements = judgement.map_or(1, |judged| judged.statements);
            self.charge(shape.handle(), statements, begun.elapsed());
        }
        let error = match attempt {
            Ok(judgement) => {
                let verdicts: Vec<RowVerdict> = judgement.outcomes.into_iter().map(verdict).collect();
                self.shapes.decide(rows, &verdicts);
                self.count_success(shape.handle());
                // What was held is queued for the store now.
                self.shapes.wait_for_room().await;
                return Ok(());
            }
            Err(error) => error,
        };
        let is_final = match &error {
            AttemptError::Judgement(JudgementError::Altered) => true,
            AttemptError::Judgement(JudgementError::TooSlow { .. }) => {
                self.count(shape.handle(), |judged| &mut judged.timeouts) >= MAX_TIMEOUTS
            }
            AttemptError::Judgement(JudgementError::Rejected(_)) => {
                self.drop_statement(shape.handle());
                self.count(shape.handle(), |judged| &mut judged.rejections) >= MAX_REJECTIONS
            }
            // A statement that ends its connection every time must not hold the shape for ever.
            AttemptError::Judgement(_) => {
                self.count(shape.handle(), |judged| &mut judged.failures) >= MAX_FAILURES
            }
            AttemptError::Pool(_) => false,
        };
        if is_final {
            self.give_up(rows, &error.to_string());
            return Ok(());
        }
        Err(error)
    }

    /// Has Postgres evaluate the shape's clause on the rows.
    async fn ask(&self, shape: &Shape, rows: &UndecidedRows) -> Result<Judgement, AttemptError> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let texts: Vec<Vec<Option<String>>> =
            rows.rows().map(|row| row.into_iter().map(|value| value.map(text)).collect()).collect();
        let mut client = self.manager.admin().await?;
        let cached = self.judged.lock().get(shape.handle()).and_then(|judged| judged.statement.clone());
        let statement = match cached {
            Some(statement) => statement,
            None => {
                let columns = shape.filter().map(Filter::columns).unwrap_or_default();
                let clause = shape.filter().map_or("true", Filter::postgres_sql);
                let table = &shape.definition().table;
                let made = JudgementStatement::new(&client, table, columns, clause).await?;
                self.cache(shape, Arc::new(made))
            }
        };
        let judgement = statement.judge(&mut client, &texts, STATEMENT_TIMEOUT).await;
        if let Ok(judgement) = &judgement {
            self.rate.charge(judgement.statements.saturating_sub(1));
            client.return_without_reset();
        }
        Ok(judgement?)
    }

    /// Returns whether a shape gives its turn to others, because its last one was long.
    fn passes(&self, handle: &str) -> bool {
        self.judged.lock().get_mut(handle).is_some_and(|judged| judged.turns.pass())
    }

    /// Charges a shape's turn.
    fn charge(&self, handle: &str, statements: usize, duration: Duration) {
        if let Some(judged) = self.judged.lock().get_mut(handle) {
            judged.turns.charge(statements, duration);
        }
    }

    fn cache(&self, shape: &Shape, statement: Arc<JudgementStatement>) -> Arc<JudgementStatement> {
        let mut judged = self.judged.lock();
        if judged.len() >= MAX_CACHED {
            judged.clear();
        }
        judged.entry(shape.handle().to_owned()).or_default().statement = Some(Arc::clone(&statement));
        statement
    }

    /// Forgets a shape's statement, so that the next one has the table's current types.
    fn drop_statement(&self, handle: &str) {
        if let Some(judged) = self.judged.lock().get_mut(handle) {
            judged.statement = None;
        }
    }

    /// Counts a failure of a shape, and returns how often it happened since the last success.
    fn count(&self, handle: &str, counter: impl FnOnce(&mut JudgedShape) -> &mut u32) -> u32 {
        let mut judged = self.judged.lock();
        let count = counter(judged.entry(handle.to_owned()).or_default());
        *count += 1;
        *count
    }

    fn count_success(&self, handle: &str) {
        if let Some(judged) = self.judged.lock().get_mut(handle) {
            (judged.rejections, judged.failures, judged.timeouts) = (0, 0, 0);
        }
    }

    /// Deletes the shape of the rows. The store logs the handle and the reason.
    fn give_up(&self, rows: UndecidedRows, reason: &str) {
        metrics::shape_given_up();
        self.judged.lock().remove(rows.shape().handle());
        self.shapes.give_up(rows, reason);
    }
}

/// Returns the number of judgements at once. One connection for metadata stays free, unless there
/// is only one.
pub(crate) fn workers(metadata_connections: u32) -> u32 {
    metadata_connections.saturating_sub(1).clamp(1, MAX_WORKERS)
}

fn verdict(outcome: Option<RowOutcome>) -> RowVerdict {
    match outcome {
        Some(RowOutcome::True) => RowVerdict::Match,
        Some(RowOutcome::NotTrue | RowOutcome::Failed) => RowVerdict::NoMatch,
        None => RowVerdict::Undecided,
    }
}

/// Returns the wait after a failed attempt. `failures` is the number of those before it.
fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_back_off_up_to_two_seconds() {
        let waits = [0, 1, 5, 6, u32::MAX].map(|failures| retry_after(failures).as_millis());
        assert_eq!(waits, [50, 100, 1_600, 2_000, 2_000]);
    }

    #[test]
    fn one_connection_for_metadata_stays_free_if_there_are_several() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(workers), [1, 1, 1, 2, 2, 2]);
    }
}
