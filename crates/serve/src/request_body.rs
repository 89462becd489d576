//! Request bodies: reads the body of a POST, with a maximum length and a maximum duration.
//!
//! Invariant: the bodies of all requests in progress have together at most [`MAX_HELD_BYTES`].
//! Enforced by: [`BodyMemory`], which is held as long as the body or what was parsed from it.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError};
use tokio::time::timeout;

use super::body::BoxError;
use super::protocol::{MAX_BODY_BYTES, RequestRefusal, TokenBearer};
use super::service::RequestBody;
use super::shape_factory::random_u64;
use super::token_verifier::while_valid;

/// Maximum bytes of all bodies that are being read or whose requests are in progress. Beyond it,
/// requests are refused with 503.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Reads request bodies, and counts their bytes. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct BodyReader {
    held: Arc<AtomicUsize>,
    /// Maximum time to receive a whole body. The HTTP server's read timeout bounds only the pauses
    /// between its parts.
    max_wait: Duration,
}

/// The bytes of one request's body, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl BodyReader {
    pub(crate) fn new(max_wait: Duration) -> Self {
        BodyReader { held: Arc::default(), max_wait }
    }

    /// Reads a request's body.
    ///
    /// # Errors
    /// Fails if the body has more than [`MAX_BODY_BYTES`], all bodies have more than
    /// [`MAX_HELD_BYTES`], the body isn't complete in time, breaks off or is encoded wrongly, or
    /// the bearer's token expires.
    pub(crate) async fn read<B: RequestBody>(
        &self,
        body: B,
        bearer: Option<&TokenBearer>,
    ) -> Result<(Bytes, BodyMemory), RequestRefusal> {
        let memory = BodyMemory { all: Arc::clone(&self.held), bytes: 0 };
        let reading = timeout(self.max_wait, collect(body, memory));
        while_valid(bearer, reading).await?.map_err(|_| RequestRefusal::BodyTooSlow)?
    }
}

/// Reads a whole body.
async fn collect<B: RequestBody>(
    body: B,
    mut memory: BodyMemory,
) -> Result<(Bytes, BodyMemory), RequestRefusal> {
    let too_large = |bytes: u64| bytes > MAX_BODY_BYTES as u64;
    if too_large(body.size_hint().lower()) {
        return Err(RequestRefusal::BodyTooLarge);
    }
    let (mut body, mut whole) = (pin!(body), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| body_refusal(&error.into()))?.into_data() else { continue };
        if too_large((whole.len() + data.len()) as u64) {
            return Err(RequestRefusal::BodyTooLarge);
        }
        memory.grow(data.len())?;
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), memory))
}

impl BodyMemory {
    /// Counts more bytes. Fails if all bodies together exceed [`MAX_HELD_BYTES`].
    fn grow(&mut self, bytes: usize) -> Result<(), RequestRefusal> {
        self.bytes += bytes;
        match self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_HELD_BYTES {
            true => Ok(()),
            false => {
                let limit = (MAX_HELD_BYTES / MAX_BODY_BYTES) as u64;
                Err(RequestRefusal::overloaded("large_body", limit, random_u64()))
            }
        }
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
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
    use http_body_util::{Full, Limited};

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

    fn reader() -> BodyReader {
        BodyReader::new(Duration::from_millis(20))
    }

    fn scripted(pieces: &[&'static [u8]], end: ScriptedEnd) -> ScriptedBody {
        ScriptedBody { pieces: pieces.iter().map(|piece| Bytes::from_static(piece)).collect(), end }
    }

    async fn read(pieces: &[&'static [u8]], end: ScriptedEnd) -> Result<Bytes, RequestRefusal> {
        reader().read(scripted(pieces, end), None).await.map(|(body, _)| body)
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
        let refused = reader().read(axum::body::Body::new(limited), None).await;
        assert_eq!(refused.unwrap_err(), RequestRefusal::BodyTooLarge);
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_while_their_requests_are_in_progress() {
        const LARGEST: &[u8] = &[b'x'; MAX_BODY_BYTES];
        let reader = reader();
        let mut others = Vec::new();
        for _ in 0..MAX_HELD_BYTES / MAX_BODY_BYTES {
            others.push(reader.read(scripted(&[LARGEST], ScriptedEnd::Complete), None).await.unwrap());
        }
        for _ in 0..2 {
            let refused = reader.read(scripted(&[b"x"], ScriptedEnd::Complete), None).await.unwrap_err();
            assert!(matches!(refused, RequestRefusal::Overloaded { .. }), "a refused body holds nothing");
        }
        assert!(reader.read(scripted(&[], ScriptedEnd::Complete), None).await.is_ok(), "an empty body");
        others.pop();
        assert!(reader.read(scripted(&[b"x"], ScriptedEnd::Complete), None).await.is_ok());
        drop(others);
        assert_eq!(reader.held.load(Ordering::Relaxed), 0);
    }
}
