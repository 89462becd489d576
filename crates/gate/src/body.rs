//! What the gate sends to a client: the upstream's body, or its own few words.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::download::{Download, DownloadError};
use super::drain::InFlight;
use super::metrics;

/// A response's body. Dropped before its end, it cancels the upstream's part.
#[derive(Debug)]
pub struct GateBody(Source);

#[derive(Debug)]
enum Source {
    /// The gate's own words, until they are taken.
    Own(Option<Bytes>),
    /// The upstream's.
    Relayed(Relayed),
}

#[derive(Debug)]
struct Relayed {
    download: Download,
    inside: InFlight,
    ended: bool,
}

impl GateBody {
    pub(crate) fn own(response: Response<Bytes>) -> Response<GateBody> {
        response.map(|words| GateBody(Source::Own(Some(words).filter(|words| !words.is_empty()))))
    }

    pub(crate) fn relayed(download: Download, inside: InFlight) -> GateBody {
        GateBody(Source::Relayed(Relayed { download, inside, ended: false }))
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
            Source::Own(words) => Poll::Ready(words.take().map(|words| Ok(Frame::data(words)))),
            Source::Relayed(relayed) => {
                let polled = Pin::new(&mut relayed.download).poll_frame(cx);
                match &polled {
                    Poll::Ready(Some(Err(_))) => {
                        relayed.ended = true;
                        metrics::upstream_failed("upstream_broke_off");
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
            Source::Own(words) => words.is_none(),
            Source::Relayed(relayed) => relayed.download.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Own(words) => SizeHint::with_exact(words.as_ref().map_or(0, Bytes::len) as u64),
            Source::Relayed(relayed) => relayed.download.size_hint(),
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if !self.ended && !self.download.is_end_stream() {
            metrics::cancelled(self.inside.kind(), metrics::Stage::Body);
        }
    }
}
