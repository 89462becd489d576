//! A function as a service, for those who need no router.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::incoming::Incoming;

/// Makes a service of a function that answers every request.
pub fn service_fn<F, A, B>(answer: F) -> ServiceFn<F>
where
    F: FnMut(Request<Incoming>) -> A,
    A: Future<Output = Response<B>>,
{
    ServiceFn { answer }
}

/// See [`service_fn`].
#[derive(Debug, Clone)]
pub struct ServiceFn<F> {
    answer: F,
}

impl<F, A, B> Service<Request<Incoming>> for ServiceFn<F>
where
    F: FnMut(Request<Incoming>) -> A,
    A: Future<Output = Response<B>>,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answering<A>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answering<A> {
        Answering { answer: (self.answer)(request) }
    }
}

pin_project! {
    /// The answer of a [`ServiceFn`], on its way.
    #[derive(Debug)]
    pub struct Answering<A> {
        #[pin]
        answer: A,
    }
}

impl<A: Future> Future for Answering<A> {
    type Output = Result<A::Output, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().answer.poll(cx).map(Ok)
    }
}
