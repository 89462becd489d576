//! Clause judge: asks Postgres about rows that a shape's clause leaves undecided.
//!
//! Invariant: other shapes never wait for a judgement. A shape whose clause takes too long, or that
//! Postgres rejects, is deleted by name, and its clients start over. While the database is away,
//! the shape waits, for as long as the store holds its changes.
//! Enforced by: the store passes only rows of held shapes (`Shapes::undecided_rows`). A task gives
//! rows back before it waits for the next attempt.
//! Out of scope: what a verdict changes; see `forebay_shapes`.
//!
//! Bounds: [`WORKERS`] judgements at once, on connections for metadata. Each statement has at most
//! [`STATEMENT_TIMEOUT`] and the rows of one batch. [`StatementRate`] bounds the statements per
//! second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::{Manager, PoolError};
use forebay_shapes::filter::{Filter, RowVerdict};
use forebay_shapes::{Shape, Shapes, UndecidedRows};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use super::database::{JudgementError, JudgementStatement, RowOutcome};
use super::metrics;

/// Number of judgements at once.
pub(crate) const WORKERS: usize = 2;
/// Maximum duration of a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of times that Postgres may reject a shape's clause. The first may be caused by a type
/// that was renamed.
const MAX_REJECTIONS: u32 = 3;
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
/// Statements that may run at once after a pause, beyond the rate.
const BURST: u32 = 10;

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
            match self.judge(rows).await {
                Ok(()) => failures = 0,
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
        metrics::judgement_ended(attempt.as_deref().ok(), begun.elapsed());
        let error = match attempt {
            Ok(outcomes) => {
                let verdicts: Vec<RowVerdict> = outcomes.into_iter().map(verdict).collect();
                self.shapes.decide(rows, &verdicts);
                self.count_success(shape.handle());
                // What was held is queued for the store now.
                self.shapes.wait_for_room().await;
                return Ok(());
            }
            Err(error) => error,
        };
        let is_final = match &error {
            AttemptError::Judgement(JudgementError::TooSlow { .. } | JudgementError::Altered) => true,
            AttemptError::Judgement(JudgementError::Rejected(_)) => {
                self.count_rejection(shape.handle()) >= MAX_REJECTIONS
            }
            // A statement that ends its connection every time must not hold the shape for ever.
            AttemptError::Judgement(_) => self.count_failure(shape.handle()) >= MAX_FAILURES,
            AttemptError::Pool(_) => false,
        };
        if is_final {
            self.give_up(rows, &error.to_string());
            return Ok(());
        }
        Err(error)
    }

    /// Has Postgres evaluate the shape's clause on the rows.
    async fn ask(&self, shape: &Shape, rows: &UndecidedRows) -> Result<Vec<RowOutcome>, AttemptError> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let texts: Vec<Vec<Option<String>>> =
            rows.rows().map(|row| row.into_iter().map(|value| value.map(text)).collect()).collect();
        let mut client = self.manager.admin().await?;
        let cached = self.judged.lock().get(shape.handle()).and_then(|judged| judged.statement.clone());
        let statement = match cached {
            Some(statement) => statement,
            None => {
                let columns = shape.filter().map(Filter::columns).unwrap_or_default();
                let definition = shape.definition();
                let clause = definition.options.clause.as_deref().unwrap_or("true");
                let made = JudgementStatement::new(&client, &definition.table, columns, clause).await?;
                self.cache(shape, Arc::new(made))
            }
        };
        let judgement = statement.judge(&mut client, &texts, STATEMENT_TIMEOUT).await;
        if let Ok((_, statements)) = &judgement {
            self.rate.charge(statements.saturating_sub(1));
            client.return_without_reset();
        }
        Ok(judgement?.0)
    }

    fn cache(&self, shape: &Shape, statement: Arc<JudgementStatement>) -> Arc<JudgementStatement> {
        let mut judged = self.judged.lock();
        if judged.len() >= MAX_CACHED {
            judged.clear();
        }
        judged.entry(shape.handle().to_owned()).or_default().statement = Some(Arc::clone(&statement));
        statement
    }

    /// Counts that Postgres rejected a shape's clause, and returns how often it did.
    fn count_rejection(&self, handle: &str) -> u32 {
        let mut judged = self.judged.lock();
        let judged = judged.entry(handle.to_owned()).or_default();
        judged.statement = None;
        judged.rejections += 1;
        judged.rejections
    }

    /// Counts that a statement ended without an answer, and returns how often that happened.
    fn count_failure(&self, handle: &str) -> u32 {
        let mut judged = self.judged.lock();
        let judged = judged.entry(handle.to_owned()).or_default();
        judged.failures += 1;
        judged.failures
    }

    fn count_success(&self, handle: &str) {
        if let Some(judged) = self.judged.lock().get_mut(handle) {
            (judged.rejections, judged.failures) = (0, 0);
        }
    }

    /// Deletes the shape of the rows. The store logs the handle and the reason.
    fn give_up(&self, rows: UndecidedRows, reason: &str) {
        metrics::shape_given_up();
        self.judged.lock().remove(rows.shape().handle());
        self.shapes.give_up(rows, reason);
    }
}

fn verdict(outcome: RowOutcome) -> RowVerdict {
    match outcome {
        RowOutcome::True => RowVerdict::Match,
        RowOutcome::NotTrue | RowOutcome::Failed => RowVerdict::NoMatch,
    }
}

/// Returns the wait after a failed attempt. `failures` is the number of those before it.
fn retry_after(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_RETRY)
}

/// Maximum rate of statements, over all shapes.
#[derive(Debug)]
struct StatementRate {
    interval: Duration,
    /// When the next statement may run.
    next: Mutex<Instant>,
}

impl StatementRate {
    fn new(statements_per_s: u32) -> Self {
        let interval = Duration::from_secs(1) / statements_per_s.max(1);
        StatementRate { interval, next: Mutex::new(Instant::now()) }
    }

    /// Waits until a statement may run, and counts it.
    async fn wait(&self) {
        let at = self.reserve(Instant::now());
        sleep_until(at).await;
    }

    /// Counts a statement, and returns when it may run.
    fn reserve(&self, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let earliest = now.checked_sub(self.interval * (BURST - 1)).unwrap_or(now);
        let at = (*next).max(earliest);
        *next = at + self.interval;
        at
    }

    /// Counts statements that have run without waiting.
    fn charge(&self, statements: usize) {
        let statements = u32::try_from(statements).unwrap_or(u32::MAX);
        *self.next.lock() += self.interval.saturating_mul(statements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn statements_run_at_the_rate_after_a_burst() {
        let rate = StatementRate::new(100);
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        let waits: Vec<_> = (0..12).map(|_| rate.reserve(now).saturating_duration_since(now)).collect();
        assert!(waits[..10].iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(waits[10..], [Duration::from_millis(10), Duration::from_millis(20)]);
        rate.charge(100);
        rate.wait().await;
        assert_eq!(start.elapsed(), Duration::from_millis(2_030));
    }

    #[test]
    fn attempts_back_off_up_to_two_seconds() {
        let waits = [0, 1, 5, 6, u32::MAX].map(|failures| retry_after(failures).as_millis());
        assert_eq!(waits, [50, 100, 1_600, 2_000, 2_000]);
    }
}
