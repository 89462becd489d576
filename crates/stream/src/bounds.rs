//! What is served, said once: the bounds that the types inside share. `Server` spells them out, for whoever reads its docs.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::error::BoxError;
use crate::incoming::Incoming;

/// A response's body: bytes, and an error that can be told.
pub(crate) trait Streamed: Body<Data = Bytes, Error: Into<BoxError>> {}

impl<B> Streamed for B where B: Body<Data = Bytes, Error: Into<BoxError>> {}

/// A service that answers every request, with such a body; a clone for each connection.
pub(crate) trait Answers<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S, B> Answers<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}
