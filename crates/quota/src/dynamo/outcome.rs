//! Outcomes of DynamoDB writes: done, lost a race, throttled, or failed.
//!
//! Only lost races and throttled writes are retried (`retry_backoff.rs`). A call without
//! a response is not: the SDK has retried it under one idempotency token, and the member handles
//! missing replies.

use std::error::Error;
use std::fmt::Write;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::CancellationReason;

use crate::store::StoreError;

/// Outcome of a conditional write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Done,
    /// The condition didn't hold. Nothing was written.
    Refused,
    /// A conflict with another write, or throttled. Nothing was written.
    Busy,
}

/// Classifies the result of a write. Other failures are errors.
pub(super) fn write_outcome<T, E>(result: Result<T, SdkError<E>>) -> Result<WriteOutcome, StoreError>
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Err(error) = result else { return Ok(WriteOutcome::Done) };
    match error.code() {
        Some("ConditionalCheckFailedException") => Ok(WriteOutcome::Refused),
        Some("TransactionConflictException") => Ok(WriteOutcome::Busy),
        Some(code) if is_throttling(code) => Ok(WriteOutcome::Busy),
        _ => Err(failed(error)),
    }
}

/// Outcome of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TransactionOutcome {
    Done,
    /// Nothing was written. Holds the indexes of the writes that failed; empty if it was throttled.
    Cancelled(Vec<usize>),
}

/// Classifies the result of a transaction.
pub(super) fn transaction_outcome<T>(
    result: Result<T, SdkError<TransactWriteItemsError>>,
) -> Result<TransactionOutcome, StoreError> {
    let Err(error) = result else { return Ok(TransactionOutcome::Done) };
    let reasons = match error.as_service_error() {
        Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
            cancelled.cancellation_reasons()
        }
        _ if error.code().is_some_and(is_throttling) => return Ok(TransactionOutcome::Cancelled(Vec::new())),
        _ => return Err(failed(error)),
    };
    failed_writes(reasons).map(TransactionOutcome::Cancelled)
}

/// Returns which writes cancelled a transaction, if a retry can succeed.
fn failed_writes(reasons: &[CancellationReason]) -> Result<Vec<usize>, StoreError> {
    let mut failed = Vec::new();
    for (index, reason) in reasons.iter().enumerate() {
        match reason.code().unwrap_or("None") {
            "None" => {}
            "ConditionalCheckFailed"
            | "TransactionConflict"
            | "ThrottlingError"
            | "ProvisionedThroughputExceeded" => failed.push(index),
            code => {
                let message = reason.message().unwrap_or("no more was said");
                return Err(StoreError::Unexpected(format!("transaction cancelled: {code}: {message}")));
            }
        }
    }
    Ok(failed)
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

/// Converts an SDK error, whose own text is only "service error" or "dispatch failure", to a text
/// with its causes.
/// The error itself is dropped, because its debug output has the whole response.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(code: &str) -> CancellationReason {
        CancellationReason::builder().code(code).message("because").build()
    }

    #[test]
    fn a_conflict_returns_the_failed_writes_and_can_be_retried() {
        let reasons = ["None", "TransactionConflict", "ConditionalCheckFailed", "None", "ThrottlingError"];
        assert_eq!(failed_writes(&reasons.map(reason)).unwrap(), [1, 2, 4]);
        assert_eq!(failed_writes(&[CancellationReason::builder().build()]).unwrap(), [0; 0]);
    }

    #[test]
    fn a_write_that_can_never_succeed_is_an_error_with_its_cause() {
        let error = failed_writes(&["ConditionalCheckFailed", "ValidationError"].map(reason)).unwrap_err();
        let text = "the store answered something unexpected: transaction cancelled: ValidationError: because";
        assert_eq!(error.to_string(), text);
    }
}
