//! Refusals: the response for each error on the way to a shape.

use forebay_replication::{NotReady, PoolError, PublishError};
use forebay_shapes::ShapeGone;
use tracing::warn;

use super::table_publisher::TablePublishError;
use crate::database::DescribeError;
use crate::protocol::{InvalidRequest, RequestRefusal};

/// Returns the refusal for requests that need the writing instance, which this one isn't.
pub(super) fn not_writing_refusal() -> RequestRefusal {
    RequestRefusal::NotReady {
        message: "only the writing instance creates and deletes shapes, and this one isn't it: try again"
            .into(),
    }
}

/// Returns why a removed shape can't be served. `None`: the client continues with another shape.
pub(crate) fn gone_refusal(gone: &ShapeGone) -> Option<RequestRefusal> {
    match gone {
        ShapeGone::Deleted => None,
        ShapeGone::Failed(failure) if failure.is_refusal => {
            Some(InvalidRequest::field("where", &failure.message).into())
        }
        ShapeGone::Failed(failure) => {
            Some(RequestRefusal::SnapshotFailed { message: failure.message.to_string().into() })
        }
    }
}

pub(super) fn manager_refusal(error: &NotReady) -> RequestRefusal {
    match error {
        NotReady::Halted { .. } => RequestRefusal::DatabaseUnreachable,
        _ => not_writing_refusal(),
    }
}

pub(super) fn pool_refusal(error: &PoolError) -> RequestRefusal {
    warn!(%error, "connection unavailable for a shape");
    RequestRefusal::DatabaseUnreachable
}

pub(super) fn describe_refusal(error: &DescribeError) -> RequestRefusal {
    match error {
        DescribeError::Database(_) => {
            warn!(%error, "table not described: query failed");
            RequestRefusal::DatabaseUnreachable
        }
        error => InvalidRequest::field("table", error).into(),
    }
}

pub(super) fn publish_refusal(error: &TablePublishError) -> RequestRefusal {
    warn!(%error, "table not added to the publication");
    let error = match error {
        TablePublishError::Refused(error) => error,
        TablePublishError::Aborted(_) => {
            return RequestRefusal::SnapshotFailed { message: "the publication couldn't be changed".into() };
        }
    };
    match error {
        PublishError::Pool(_) | PublishError::Timeout => RequestRefusal::DatabaseUnreachable,
        // Without a code, the connection was lost. Class 57 means that the server shuts down.
        // Neither is caused by the request.
        PublishError::Server(error) if error.code().is_none_or(|code| code.code().starts_with("57")) => {
            RequestRefusal::DatabaseUnreachable
        }
        // Both end soon: the manager's reconciliation restores a narrowed publication.
        PublishError::Busy { .. } | PublishError::Narrowed { .. } => {
            RequestRefusal::SnapshotFailed { message: error.to_string().into() }
        }
        error => InvalidRequest::field("table", error).into(),
    }
}
