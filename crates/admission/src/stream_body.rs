//! Response body that holds its stream's permit.
//!
//! Invariant: the permit is released when the body is dropped, ends or fails, whichever comes
//! first.
//! Out of scope: upgraded connections. Whether the body of a 101 lives as long as its connection
//! depends on the server; `forebay_stream` keeps it until then.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::permit::Permit;

pin_project! {
    /// Body of a response that passed the layer: a stream with its permit, or the body of a
    /// rejection.
    #[derive(Debug)]
    pub struct StreamBody<B> {
        #[pin]
        content: Content<B>,
        permit: Option<Permit>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = Projected]
    enum Content<B> {
        Stream { #[pin] body: B },
        Rejection { bytes: Bytes },
    }
}

impl<B> StreamBody<B> {
    /// Creates the body of a stream that holds its permit.
    pub fn new(body: B, permit: Permit) -> Self {
        StreamBody { content: Content::Stream { body }, permit: Some(permit) }
    }

    /// Creates the body of a request that needs no permit.
    pub(crate) fn without_permit(body: B) -> Self {
        StreamBody { content: Content::Stream { body }, permit: None }
    }

    /// Returns the body of the inner service. `None`: the request was rejected.
    pub fn stream_mut(&mut self) -> Option<&mut B> {
        match &mut self.content {
            Content::Stream { body } => Some(body),
            Content::Rejection { .. } => None,
        }
    }

    /// Creates the body of a rejection.
    pub(crate) fn rejection(bytes: Bytes) -> Self {
        StreamBody { content: Content::Rejection { bytes }, permit: None }
    }
}

impl<B: Body<Data = Bytes>> Body for StreamBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.content.project() {
            Projected::Stream { body } => {
                let frame = ready!(body.poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    drop(this.permit.take());
                }
                Poll::Ready(frame)
            }
            Projected::Rejection { bytes } => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Stream { body } => body.is_end_stream(),
            Content::Rejection { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Stream { body } => body.size_hint(),
            Content::Rejection { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
