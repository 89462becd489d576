//! Service made of a function.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::incoming::Incoming;

/// Creates a service that calls `handler` for every request.
pub fn service_fn<F, A, B>(handler: F) -> ServiceFn<F>
where
    F: FnMut(Request<Incoming>) -> A,
    A: Future<Output = Response<B>>,
{
    ServiceFn { handler }
}

/// Service returned by [`service_fn`].
#[derive(Debug, Clone)]
pub struct ServiceFn<F> {
    handler: F,
}

impl<F, A, B> Service<Request<Incoming>> for ServiceFn<F>
where
    F: FnMut(Request<Incoming>) -> A,
    A: Future<Output = Response<B>>,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = ServiceFnFuture<A>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> ServiceFnFuture<A> {
        ServiceFnFuture { response: (self.handler)(request) }
    }
}

pin_project! {
    /// Future returned by a [`ServiceFn`].
    #[derive(Debug)]
    pub struct ServiceFnFuture<A> {
        #[pin]
        response: A,
    }
}

impl<A: Future> Future for ServiceFnFuture<A> {
    type Output = Result<A::Output, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().response.poll(cx).map(Ok)
    }
}
