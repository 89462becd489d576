//! What a failed call means: somebody was quicker, DynamoDB is busy, or it can't be used.
//!
//! Only the first two are tried again here, and only so often. What may have landed unheard is not: the SDK has tried it
//! again under one idempotency token, and the caller knows how to live with an answer that never came.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::CancellationReason;

use crate::store::StoreError;

/// With the pauses below, about 1.5 s; callers have deadlines of their own.
const MAX_TRIES: u32 = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// How a write went that had a condition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Done,
    /// The condition didn't hold: nothing was written.
    Refused,
    /// Another write was under way, or there were too many: nothing was written.
    Busy,
}

/// Sorts a write's result; what can't be helped is an error.
pub(super) fn wrote<T, E>(result: Result<T, SdkError<E>>) -> Result<Wrote, StoreError>
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Err(error) = result else { return Ok(Wrote::Done) };
    match error.code() {
        Some("ConditionalCheckFailedException") => Ok(Wrote::Refused),
        Some("TransactionConflictException") => Ok(Wrote::Busy),
        Some(code) if is_throttling(code) => Ok(Wrote::Busy),
        _ => Err(failed(error)),
    }
}

/// How a transaction went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transacted {
    Done,
    /// Nothing was written, because of these of its writes; of none in particular if it was all too much.
    Cancelled(Vec<usize>),
}

/// Sorts a transaction's result.
pub(super) fn transacted<T>(
    result: Result<T, SdkError<TransactWriteItemsError>>,
) -> Result<Transacted, StoreError> {
    let Err(error) = result else { return Ok(Transacted::Done) };
    let reasons = match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            cancelled.cancellation_reasons()
        }
        _ if error.code().is_some_and(is_throttling) => return Ok(Transacted::Cancelled(Vec::new())),
        _ => return Err(failed(error)),
    };
    culprits(reasons).map(Transacted::Cancelled)
}

/// Which of a transaction's writes spoilt it, if trying again can help.
fn culprits(reasons: &[CancellationReason]) -> Result<Vec<usize>, StoreError> {
    let mut culprits = Vec::new();
    for (index, reason) in reasons.iter().enumerate() {
        match reason.code().unwrap_or("None") {
            "None" => {}
            "ConditionalCheckFailed"
            | "TransactionConflict"
            | "ThrottlingError"
            | "ProvisionedThroughputExceeded" => culprits.push(index),
            code => {
                let message = reason.message().unwrap_or("no more was said");
                return Err(StoreError::Unexpected(format!("transaction cancelled: {code}: {message}")));
            }
        }
    }
    Ok(culprits)
}

fn is_throttling(code: &str) -> bool {
    matches!(
        code,
        "ProvisionedThroughputExceededException"
            | "RequestLimitExceeded"
            | "ThrottlingException"
            | "Throttling"
    )
}

/// The SDK's errors print as "service error" or "dispatch failure": the cause is further down. The error itself isn't kept,
/// since its debug form holds the whole response.
pub(super) fn failed<E>(error: SdkError<E>) -> StoreError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if let Some(code) = error.code() {
        return StoreError::Unexpected(match error.message() {
            Some(message) => format!("{code}: {message}"),
            None => code.to_string(),
        });
    }
    let mut text = String::from(match &error {
        SdkError::ConstructionFailure(_) => "the request couldn't be made",
        SdkError::TimeoutError(_) => "no answer in time",
        SdkError::DispatchFailure(_) => "no connection",
        SdkError::ResponseError(_) => "the response broke off",
        _ => "an error without a code",
    });
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    StoreError::Unreachable(text.into())
}

/// Paces those who try again: a pause that doubles, at random, and an end.
#[derive(Debug, Default)]
pub(super) struct Pace {
    tries: u32,
}

impl Pace {
    /// Waits before the next try, or says that there have been enough.
    pub(super) async fn again(&mut self) -> Result<(), StoreError> {
        self.tries += 1;
        if self.tries >= MAX_TRIES {
            return Err(StoreError::Unexpected(format!("{MAX_TRIES} tries were cancelled by other writers")));
        }
        tokio::time::sleep(self.longest().mul_f64(fraction())).await;
        Ok(())
    }

    fn longest(&self) -> Duration {
        (FIRST_PAUSE * 2_u32.pow(self.tries.min(8))).min(MAX_PAUSE)
    }
}

/// Evenly between 0 and 1.
fn fraction() -> f64 {
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Of std's hasher keys, which the system seeds: it must spread, not be secret.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: &str) -> CancellationReason {
        CancellationReason::builder().code(code).message("because").build()
    }

    #[test]
    fn a_conflict_names_those_who_met_and_is_worth_another_try() {
        let reasons = ["None", "TransactionConflict", "ConditionalCheckFailed", "None", "ThrottlingError"];
        assert_eq!(culprits(&reasons.map(reason)).unwrap(), [1, 2, 4]);
        assert_eq!(culprits(&[CancellationReason::builder().build()]).unwrap(), [0; 0]);
    }

    #[test]
    fn a_write_that_can_never_work_is_an_error_that_says_why() {
        let error = culprits(&["ConditionalCheckFailed", "ValidationError"].map(reason)).unwrap_err();
        let text = "the store answered something unexpected: transaction cancelled: ValidationError: because";
        assert_eq!(error.to_string(), text);
    }

    #[tokio::test(start_paused = true)]
    async fn tries_come_to_an_end() {
        let (mut pace, begun) = (Pace::default(), tokio::time::Instant::now());
        let mut tries = 0;
        while pace.again().await.is_ok() {
            tries += 1;
        }
        assert_eq!(tries, MAX_TRIES - 1);
        assert!(begun.elapsed() < MAX_PAUSE * MAX_TRIES);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_fractions_spread() {
        let longest: Vec<_> = (1..8).map(|tries| Pace { tries }.longest().as_millis()).collect();
        assert_eq!(longest, [8, 16, 32, 64, 100, 100, 100]);
        let sum: f64 = (0..1000).map(|_| fraction()).sum();
        assert!((400.0..600.0).contains(&sum), "{sum}");
    }
}
