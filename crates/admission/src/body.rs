//! A body that holds its stream's permit.
//!
//! Invariant: the permit lives as long as the body has more to give, and no longer: it is dropped with the body, or when the
//! body ends or fails, whichever comes first. A 101's body ends at once; what becomes of its connection, no body tells.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::permit::Permit;

pin_project! {
    /// The body of a response that went through the door: a stream with its permit, or the answer to one who was refused.
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
        Answer { bytes: Bytes },
    }
}

impl<B> StreamBody<B> {
    /// A stream that holds its permit.
    pub fn new(body: B, permit: Permit) -> Self {
        StreamBody { content: Content::Stream { body }, permit: Some(permit) }
    }

    /// A body that needed no permit.
    pub(crate) fn free(body: B) -> Self {
        StreamBody { content: Content::Stream { body }, permit: None }
    }

    pub(crate) fn answer(bytes: Bytes) -> Self {
        StreamBody { content: Content::Answer { bytes }, permit: None }
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
            Projected::Answer { bytes } => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Stream { body } => body.is_end_stream(),
            Content::Answer { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Stream { body } => body.size_hint(),
            Content::Answer { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}
