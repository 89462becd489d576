//! Response body of the gate: relayed from the upstream, or written by the gate itself.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::download::{Download, DownloadError};
use super::drain::InFlightRequest;
use super::metrics;

/// Body of a response. Dropping it before its end cancels the request to the upstream.
#[derive(Debug)]
pub struct GateBody(BodySource);

#[derive(Debug)]
enum BodySource {
    /// A body that the gate wrote. `None` once it was sent.
    Gate(Option<Bytes>),
    /// A body that is relayed from the upstream.
    Upstream(RelayedBody),
}

/// The upstream's body. Its request counts as in flight until the body is dropped.
#[derive(Debug)]
struct RelayedBody {
    download: Download,
    in_flight: InFlightRequest,
    ended: bool,
}

impl GateBody {
    pub(crate) fn from_gate(response: Response<Bytes>) -> Response<GateBody> {
        response.map(|bytes| GateBody(BodySource::Gate(Some(bytes).filter(|bytes| !bytes.is_empty()))))
    }

    pub(crate) fn from_upstream(download: Download, in_flight: InFlightRequest) -> GateBody {
        GateBody(BodySource::Upstream(RelayedBody { download, in_flight, ended: false }))
    }
}

impl Body for GateBody {
    type Data = Bytes;
    type Error = DownloadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        match &mut self.0 {
            BodySource::Gate(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodySource::Upstream(relayed) => {
                let polled = Pin::new(&mut relayed.download).poll_frame(cx);
                match &polled {
                    Poll::Ready(Some(Err(_))) => {
                        relayed.ended = true;
                        metrics::count_upstream_failure("upstream_broke_off");
                    }
                    Poll::Ready(None) => relayed.ended = true,
                    Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Gate(bytes) => bytes.is_none(),
            BodySource::Upstream(relayed) => relayed.download.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Gate(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            BodySource::Upstream(relayed) => relayed.download.size_hint(),
        }
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        if !self.ended && !self.download.is_end_stream() {
            metrics::count_cancelled(self.in_flight.kind(), metrics::CancelStage::Body);
        }
    }
}
