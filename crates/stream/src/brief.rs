//! A connection before hyper has it: requests without a body, answered one after another.
//!
//! Most requests are such, and all of those that poll. With hyper a long-poll took a sixth more CPU, and two buffers of eight kilobytes while it
//! waited. What is more than that goes to hyper as it came, and the connection stays there.
//!
//! Invariant: a request is answered here or given to hyper whole, never both; whatever the client does or leaves undone, the
//! connection ends: it may be idle for `idle_timeout`, or for `drain_grace` once the server drains, and take nothing for
//! `write_timeout`; a client that leaves is noticed, unless it has sent much of what it wasn't asked for.
//! Kept by: one loop, of which each step has its own deadline. `request.rs` decides what is understood.
//! Memory: while a request waits there is no buffer. Bytes behind it are kept until it is answered, up to [`READ`].

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Version};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::bounds::{Answers, Streamed};
use crate::chunk::Batch;
use crate::config::ServeConfig;
use crate::head::{self, Framing};
use crate::incoming::Incoming;
use crate::io::read_once;
use crate::lean::Taken;
use crate::outbox::{Lost, Outbox, WRITES};
use crate::request::understand;
use crate::server::Shared;
use crate::spare;
use crate::{Live, Peer};

/// What is read at once. A head that is longer goes to hyper.
const READ: usize = 8 * 1024;

/// How brief exchanges end.
pub(crate) enum Ended<B> {
    /// The client is gone, or was told to go.
    Over,
    /// Everything is written; the client closes next.
    Closing(TcpStream),
    /// A live stream takes the socket.
    Taken(Taken<B>),
    /// hyper goes on, with all that came of a request.
    ForHyper {
        stream: TcpStream,
        heard: Bytes,
        /// When it began to come, unless it is the connection's first.
        since: Option<Instant>,
    },
}

/// Answers until there is something else to do. `heard` has come already.
pub(crate) async fn serve<S, B>(
    stream: TcpStream,
    heard: &[u8],
    peer: Peer,
    service: &mut S,
    shared: &Shared,
) -> Ended<B>
where
    S: Answers<B>,
    B: Streamed,
{
    let mut idling = pin!(sleep(shared.config.idle_timeout));
    let (mut draining, mut drains) = (pin!(shared.drain_begun()), false);
    let mut client = Client { stream, heard: heard.to_vec() };
    let mut is_first = true;
    loop {
        let mut request = match client.hear(&shared.config) {
            Ok(Heard::Request(request)) => request,
            Ok(Heard::Else(heard)) => {
                let since = (!is_first).then(Instant::now);
                return Ended::ForHyper { stream: client.stream, heard, since };
            }
            Ok(Heard::End) | Err(_) => return Ended::Over,
            Ok(Heard::Nothing) => {
                let idle = if drains { shared.drain_grace() } else { shared.config.idle_timeout };
                let mut due = Instant::now() + idle;
                let readable = poll_fn(|cx| {
                    if let Poll::Ready(readable) = client.stream.poll_read_ready(cx) {
                        return Poll::Ready(readable.is_ok());
                    }
                    if !drains && draining.as_mut().poll(cx).is_ready() {
                        drains = true;
                        due = due.min(Instant::now() + shared.drain_grace());
                        idling.as_mut().reset(due);
                    }
                    rings(idling.as_mut(), due, cx).map(|()| false)
                });
                match readable.await {
                    true => continue,
                    false => return Ended::Over,
                }
            }
        };
        is_first = false;
        // One who always has the next request ready, and an answer that needs no waiting: others get their turn all the same.
        tokio::task::coop::consume_budget().await;
        shared.stats.counters().requests.up();
        request.extensions_mut().insert(peer);
        let method = request.method().clone();
        let Some(response) = client.answer(service, request).await else { return Ended::Over };
        let is_live = response.extensions().get::<Live>().is_some();
        if is_live && head::may_stream(&method, Version::HTTP_11, response.status()) {
            let (parts, body) = response.into_parts();
            let (head, discarded) = (head::encode(&parts, &head::date()), client.heard.len());
            return Ended::Taken(Taken { stream: client.stream, head, body, discarded });
        }
        // After an interim response there would be another, which nobody has.
        let closes = shared.is_draining()
            || head::says_close(response.headers())
            || response.status().is_informational();
        match client.write(response, &method, closes, shared.config.write_timeout).await {
            Ok(()) if closes => return Ended::Closing(client.stream),
            Ok(()) => {}
            Err(Broken::Lost(Lost::Slow)) => {
                shared.stats.counters().slow_clients.up();
                return Ended::Over;
            }
            Err(Broken::Lost(Lost::Left) | Broken::Body) => return Ended::Over,
        }
    }
}

/// Ready at `due`. The timer may be set for an earlier time: it is put off only when it rings, which is seldom.
fn rings(mut timer: Pin<&mut Sleep>, due: Instant, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        ready!(timer.as_mut().poll(cx));
        if timer.deadline() >= due {
            return Poll::Ready(());
        }
        timer.as_mut().reset(due);
    }
}

struct Client {
    stream: TcpStream,
    /// What came and isn't answered.
    heard: Vec<u8>,
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart at once, and a box costs more")]
enum Heard {
    Request(Request<Incoming>),
    /// Something else, or not all of it.
    Else(Bytes),
    /// Nothing more will come.
    End,
    Nothing,
}

/// Why a response wasn't written to its end.
enum Broken {
    Lost(Lost),
    /// The body failed, or isn't as long as it said.
    Body,
}

impl Client {
    /// What was kept, if that is a request; else also what is there now.
    fn hear(&mut self, config: &ServeConfig) -> io::Result<Heard> {
        let kept = std::mem::take(&mut self.heard);
        if let Some(request) = understand(&kept, config) {
            return Ok(Heard::Request(request));
        }
        let mut room = [MaybeUninit::uninit(); READ];
        let Some((before, room_left)) = room.split_at_mut_checked(kept.len()) else {
            return Ok(Heard::Else(kept.into()));
        };
        before.write_copy_of_slice(&kept);
        let count = match read_once(&self.stream, room_left) {
            Ok(0) if kept.is_empty() => return Ok(Heard::End),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && kept.is_empty() => {
                return Ok(Heard::Nothing);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        // SAFETY: all of it was written, by the copy and by the socket.
        let text = unsafe { room[..kept.len() + count].assume_init_ref() };
        let request = understand(text, config);
        Ok(request.map_or_else(|| Heard::Else(Bytes::copy_from_slice(text)), Heard::Request))
    }

    /// The service's answer; `None` if the client leaves before it.
    async fn answer<S, B>(&mut self, service: &mut S, request: Request<Incoming>) -> Option<Response<B>>
    where
        S: Answers<B>,
    {
        let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
        let mut answering = pin!(service.call(request));
        poll_fn(|cx| {
            if let Poll::Ready(answered) = answering.as_mut().poll(cx) {
                let response: Result<_, Infallible> = answered;
                return Poll::Ready(response.ok());
            }
            self.poll_gone(cx).map(|()| None)
        })
        .await
    }

    /// Ready when the client has left. What it says meanwhile is kept; if that is much, nobody looks until it is answered.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.heard.len() < READ {
            let Ok(()) = ready!(self.stream.poll_read_ready(cx)) else { return Poll::Ready(()) };
            if self.listen().is_err() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    #[cold]
    fn listen(&mut self) -> io::Result<()> {
        let mut room = [0; READ];
        match self.stream.try_read(&mut room[self.heard.len()..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.heard.extend_from_slice(&room[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes a response, its head together with what there is of its body.
    async fn write<B: Streamed>(
        &mut self,
        response: Response<B>,
        method: &Method,
        closes: bool,
        write_timeout: Duration,
    ) -> Result<(), Broken> {
        let framing = Framing::of(method, &response);
        let (parts, body) = response.into_parts();
        let (mut head, mut outbox) = (Some(parts), Outbox::default());
        let mut rest = Rest::of(framing);
        let mut body = pin!(Some(body));
        poll_fn(|cx| {
            for _ in 0..WRITES {
                ready!(outbox.poll(&self.stream, write_timeout, cx)).map_err(Broken::Lost)?;
                let mut batch = Batch::of_this_thread();
                if let Some(parts) = head.take() {
                    batch.push_text(|text| head::write(text, &parts, framing, closes, &head::date()));
                    spare::keep(parts.headers);
                }
                let gathered = rest.gather(body.as_mut(), &mut batch, cx);
                if rest == Rest::None {
                    body.set(None); // and what it holds, though the client may take its time
                }
                let (is_silent, written) = (batch.len() == 0, outbox.write(&self.stream, &mut batch));
                written.map_err(Broken::Lost)?;
                batch.keep();
                gathered?;
                if rest == Rest::None && outbox.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                if is_silent {
                    ready!(self.poll_gone(cx));
                    return Poll::Ready(Err(Broken::Lost(Lost::Left)));
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// What is to come of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    None,
    Length(u64),
    Chunks,
}

impl Rest {
    fn of(framing: Framing) -> Rest {
        match framing {
            Framing::Bodiless(_) | Framing::Length(0) => Rest::None,
            Framing::Length(length) => Rest::Length(length),
            Framing::Chunks => Rest::Chunks,
        }
    }

    /// Takes what the body has into the batch.
    fn gather<B: Streamed>(
        &mut self,
        mut body: Pin<&mut Option<B>>,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Result<(), Broken> {
        while *self != Rest::None
            && !batch.is_full()
            && let Some(body) = body.as_mut().as_pin_mut()
        {
            let Poll::Ready(frame) = body.poll_frame(cx) else { return Ok(()) };
            match (frame, &mut *self) {
                (Some(Err(error)), _) => {
                    tracing::debug!(error = %error.into(), "the body of a response failed");
                    return Err(Broken::Body);
                }
                // Nobody asked for trailers, or hyper would be here.
                (Some(Ok(frame)), Rest::Chunks) => {
                    frame.into_data().into_iter().for_each(|data| batch.push_chunk(&data));
                }
                (Some(Ok(frame)), Rest::Length(left)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    *left = left.checked_sub(data.len() as u64).ok_or(Broken::Body)?;
                    batch.push_piece(&data);
                    if *left == 0 {
                        *self = Rest::None;
                    }
                }
                (None, Rest::Chunks) => {
                    batch.push_last();
                    *self = Rest::None;
                }
                (None, Rest::Length(_)) => return Err(Broken::Body),
                (_, Rest::None) => unreachable!("nothing is gathered then"),
            }
        }
        Ok(())
    }
}
