//! Response body of the gate: relayed from the upstream, written by the gate itself, or the tunnel
//! of an upgraded connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use forebay_admission::EndSignal;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tracing::debug;

use super::download::{Download, DownloadError};
use super::drain::InFlightRequest;
use super::metrics;
use super::outcome_counters::{GateOutcome, OutcomeGuard};
use super::request_failure::{FailureStage, FailureType, RequestFailure};
use super::tunnel::{Tunnel, TunnelEnd};

/// Body of a response. Dropping it before its end cancels the request to the upstream.
#[derive(Debug)]
pub struct GateBody {
    source: BodySource,
    /// Signal by which an operator ends the stream. `None` if the request has no permit, or once
    /// the stream has ended by it.
    end: Option<EndSignal>,
}

#[derive(Debug)]
enum BodySource {
    /// A body that the gate wrote. `None` once it was sent.
    Gate(Option<Bytes>),
    /// A body that is relayed from the upstream.
    Upstream(RelayedBody),
    /// The tunnel of a 101. It yields no data and ends with the upgraded connection.
    Tunnel(Box<TunnelBody>),
}

/// The upstream's body. Its request counts as in flight until the body is dropped.
#[derive(Debug)]
struct RelayedBody {
    download: Download,
    in_flight: InFlightRequest,
    ended: bool,
    /// Counts the request, and its outcome if the body is complete.
    outcome: Option<(OutcomeGuard, GateOutcome)>,
}

/// An upgraded connection. Its request counts as in flight until the body is dropped.
#[derive(Debug)]
struct TunnelBody {
    tunnel: Tunnel,
    /// How the tunnel ended, once it has.
    end: Option<TunnelEnd>,
    _in_flight: InFlightRequest,
    /// Counts the request.
    outcome: Option<OutcomeGuard>,
}

impl GateBody {
    pub(crate) fn from_tunnel(
        tunnel: Tunnel,
        in_flight: InFlightRequest,
        end: Option<EndSignal>,
    ) -> GateBody {
        let tunnel = TunnelBody { tunnel, end: None, _in_flight: in_flight, outcome: None };
        GateBody { source: BodySource::Tunnel(Box::new(tunnel)), end }
    }

    pub(crate) fn from_gate(response: Response<Bytes>) -> Response<GateBody> {
        response.map(|bytes| {
            let source = BodySource::Gate(Some(bytes).filter(|bytes| !bytes.is_empty()));
            GateBody { source, end: None }
        })
    }

    pub(crate) fn from_upstream(
        download: Download,
        in_flight: InFlightRequest,
        end: Option<EndSignal>,
    ) -> GateBody {
        let relayed = RelayedBody { download, in_flight, ended: false, outcome: None };
        GateBody { source: BodySource::Upstream(relayed), end }
    }

    /// Makes the body count its request when it ends. `status` is that of the response.
    pub(crate) fn count_outcome(&mut self, mut guard: OutcomeGuard, status: StatusCode) {
        match &mut self.source {
            BodySource::Gate(_) => guard.set(GateOutcome::of_refusal(status)),
            BodySource::Upstream(relayed) => {
                guard.add_series();
                relayed.outcome = Some((guard, GateOutcome::of_upstream(status)));
            }
            BodySource::Tunnel(body) => {
                guard.add_series();
                body.outcome = Some(guard);
            }
        }
    }

    /// Ends the stream that an operator ends, as at the drain deadline: a relayed body without a
    /// clean end, and a tunnel by closing both sides.
    fn end_by_operator(&mut self) -> Option<Result<Frame<Bytes>, DownloadError>> {
        self.end = None;
        match &mut self.source {
            BodySource::Gate(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            BodySource::Upstream(relayed) => {
                relayed.ended = true;
                Some(Err(DownloadError::Ended))
            }
            BodySource::Tunnel(body) => {
                body.end = Some(TunnelEnd::Aborted);
                None
            }
        }
    }
}

impl Body for GateBody {
    type Data = Bytes;
    type Error = DownloadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        if self.end.as_ref().is_some_and(|end| end.poll_sent(cx).is_ready()) {
            return Poll::Ready(self.end_by_operator());
        }
        match &mut self.source {
            BodySource::Gate(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            BodySource::Upstream(relayed) => {
                let polled = Pin::new(&mut relayed.download).poll_frame(cx);
                match &polled {
                    Poll::Ready(Some(Err(error))) => {
                        relayed.end(Some(match error.is_clients_fault() {
                            true => GateOutcome::ClientError,
                            false => GateOutcome::UpstreamError,
                        }));
                        count_broken_stream(error);
                    }
                    Poll::Ready(None) => relayed.end(None),
                    Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                }
                polled
            }
            BodySource::Tunnel(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Gate(bytes) => bytes.is_none(),
            BodySource::Upstream(relayed) => relayed.download.is_end_stream(),
            BodySource::Tunnel(body) => body.end.is_some(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Gate(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            BodySource::Upstream(relayed) => relayed.download.size_hint(),
            BodySource::Tunnel(_) => SizeHint::default(),
        }
    }
}

impl TunnelBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, DownloadError>>> {
        if self.end.is_some() {
            return Poll::Ready(None);
        }
        let end = ready!(self.tunnel.poll(cx));
        self.end = Some(end);
        Poll::Ready(match end {
            TunnelEnd::UpstreamLost => {
                metrics::count_upstream_failure("upstream_broke_off");
                metrics::count_failure(RequestFailure::new(FailureStage::Stream, FailureType::Reset));
                Some(Err(DownloadError::Closed))
            }
            TunnelEnd::Closed | TunnelEnd::Idle | TunnelEnd::ClientLost | TunnelEnd::Aborted => None,
        })
    }
}

impl Drop for TunnelBody {
    fn drop(&mut self) {
        // Without a client, it left before its 101 was written.
        let unfinished = if self.tunnel.has_client() { TunnelEnd::Aborted } else { TunnelEnd::ClientLost };
        let end = self.end.unwrap_or(unfinished);
        let (to_upstream, to_client) = self.tunnel.passed_bytes();
        debug!(end = end.as_str(), to_upstream, to_client, "upgraded connection ended");
        metrics::count_upgrade_end(end);
        if let Some(guard) = &mut self.outcome {
            guard.set(match end {
                TunnelEnd::Closed | TunnelEnd::Idle => GateOutcome::Success,
                TunnelEnd::UpstreamLost => GateOutcome::UpstreamError,
                TunnelEnd::ClientLost | TunnelEnd::Aborted => GateOutcome::Cancelled,
            });
        }
    }
}

impl RelayedBody {
    /// Sets the outcome: that of the status, or of a failure.
    fn end(&mut self, failed: Option<GateOutcome>) {
        self.ended = true;
        if let Some((guard, complete)) = &mut self.outcome {
            guard.set(failed.unwrap_or(*complete));
        }
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if self.download.is_end_stream() {
            self.end(None);
        } else {
            metrics::count_cancelled(self.in_flight.kind(), metrics::CancelStage::Body);
        }
    }
}

fn count_broken_stream(error: &DownloadError) {
    if !error.is_clients_fault() {
        metrics::count_upstream_failure("upstream_broke_off");
    }
    metrics::count_failure(RequestFailure::of_download(error));
}
