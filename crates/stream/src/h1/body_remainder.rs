//! Remaining part of a response body.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::h1::connection::ResponseWriteError;
use crate::h1::response_head::Framing;
use crate::h1::write_batch::WriteBatch;
use crate::service::ResponseBody;

/// Bytes or chunks of a response body that are still to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyRemainder {
    None,
    Length(u64),
    Chunked,
}

impl BodyRemainder {
    pub(super) fn of(framing: Framing) -> BodyRemainder {
        match framing {
            Framing::WithoutBody(_) | Framing::Length(0) => BodyRemainder::None,
            Framing::Length(length) => BodyRemainder::Length(length),
            Framing::Chunked => BodyRemainder::Chunked,
        }
    }

    /// Moves available data of the body into the batch.
    pub(super) fn fill_batch<B: ResponseBody>(
        &mut self,
        mut body: Pin<&mut Option<B>>,
        batch: &mut WriteBatch,
        cx: &mut Context<'_>,
    ) -> Result<(), ResponseWriteError> {
        while *self != BodyRemainder::None
            && !batch.is_full()
            && let Some(body) = body.as_mut().as_pin_mut()
        {
            let Poll::Ready(frame) = body.poll_frame(cx) else { return Ok(()) };
            match (frame, &mut *self) {
                (Some(Err(error)), _) => {
                    tracing::debug!(error = %error.into(), "response body failed");
                    return Err(ResponseWriteError::Body);
                }
                // The client didn't ask for trailers; such requests go to hyper.
                (Some(Ok(frame)), BodyRemainder::Chunked) => {
                    frame.into_data().into_iter().for_each(|data| batch.push_chunk(&data));
                }
                (Some(Ok(frame)), BodyRemainder::Length(left)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    *left = left.checked_sub(data.len() as u64).ok_or(ResponseWriteError::Body)?;
                    batch.push_data(&data);
                    if *left == 0 {
                        *self = BodyRemainder::None;
                    }
                }
                (None, BodyRemainder::Chunked) => {
                    batch.push_last();
                    *self = BodyRemainder::None;
                }
                (None, BodyRemainder::Length(_)) => return Err(ResponseWriteError::Body),
                (_, BodyRemainder::None) => unreachable!("the loop ends at `None`"),
            }
        }
        Ok(())
    }
}
