//! Request bodies: reads the body of a POST, with a maximum length and a maximum duration.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use super::body::BoxError;
use super::protocol::{MAX_BODY_BYTES, RequestRefusal, TokenBearer};
use super::service::RequestBody;
use super::token_verifier::while_valid;

/// Reads a request's body.
///
/// # Errors
/// Fails if the body has more than [`MAX_BODY_BYTES`], isn't complete after `max_wait`, breaks off
/// or is encoded wrongly, or the bearer's token expires.
pub(super) async fn read_body<B: RequestBody>(
    body: B,
    max_wait: Duration,
    bearer: Option<&TokenBearer>,
) -> Result<Bytes, RequestRefusal> {
    let reading = timeout(max_wait, Limited::new(body, MAX_BODY_BYTES).collect());
    let body = while_valid(bearer, reading).await?.map_err(|_| RequestRefusal::BodyTooSlow)?;
    Ok(body.map_err(|error| body_refusal(&error))?.to_bytes())
}

/// Returns the refusal for a body that can't be read. A layer outside of this service may have its
/// own, lower limit and wrap the error.
fn body_refusal(error: &BoxError) -> RequestRefusal {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return RequestRefusal::BodyTooLarge;
        }
        cause = error.source();
    }
    RequestRefusal::BodyUnreadable
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::{Body, Frame};
    use http_body_util::Full;

    use super::*;

    /// A body of given pieces. After the last one, it ends, fails or waits.
    struct ScriptedBody {
        pieces: VecDeque<Bytes>,
        end: ScriptedEnd,
    }

    enum ScriptedEnd {
        Complete,
        Fails(Option<BoxError>),
        Waits,
    }

    impl Body for ScriptedBody {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match &mut self.end {
                ScriptedEnd::Complete => Poll::Ready(None),
                ScriptedEnd::Fails(error) => Poll::Ready(error.take().map(Err)),
                ScriptedEnd::Waits => Poll::Pending,
            }
        }
    }

    async fn read(pieces: &[&'static [u8]], end: ScriptedEnd) -> Result<Bytes, RequestRefusal> {
        let pieces = pieces.iter().map(|piece| Bytes::from_static(piece)).collect();
        read_body(ScriptedBody { pieces, end }, Duration::from_millis(20), None).await
    }

    #[tokio::test]
    async fn only_a_body_above_the_limit_is_too_large() {
        const HALF: &[u8] = &[b'x'; MAX_BODY_BYTES / 2];
        let whole = read(&[HALF, HALF], ScriptedEnd::Complete).await;
        assert_eq!(whole.map(|body| body.len()), Ok(MAX_BODY_BYTES));
        let too_large = read(&[HALF, HALF, b"x"], ScriptedEnd::Complete).await;
        assert_eq!(too_large, Err(RequestRefusal::BodyTooLarge));
        for cause in [io::ErrorKind::ConnectionReset, io::ErrorKind::InvalidData] {
            let broken =
                read(&[b"{\"where\""], ScriptedEnd::Fails(Some(io::Error::from(cause).into()))).await;
            assert_eq!(broken, Err(RequestRefusal::BodyUnreadable), "{cause}");
        }
        assert_eq!(read(&[b"{"], ScriptedEnd::Waits).await, Err(RequestRefusal::BodyTooSlow));
    }

    #[tokio::test]
    async fn the_limit_of_an_outer_layer_counts_too() {
        let limited = Limited::new(Full::new(Bytes::from_static(b"four")), 3);
        let refused = read_body(axum::body::Body::new(limited), Duration::from_secs(1), None).await;
        assert_eq!(refused, Err(RequestRefusal::BodyTooLarge));
    }
}
