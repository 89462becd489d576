//! Trait aliases for the services and response bodies that the server accepts.
//!
//! [`HttpServer`](crate::HttpServer) repeats these bounds in full, so that its docs show them.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::error::BodyError;
use crate::incoming::Incoming;

/// Response body of `Bytes` with any error type.
pub(crate) trait ResponseBody: Body<Data = Bytes, Error: Into<BodyError>> {}

impl<B> ResponseBody for B where B: Body<Data = Bytes, Error: Into<BodyError>> {}

/// Infallible HTTP service, cloned for each connection.
pub(crate) trait HttpService<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S, B> HttpService<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}
