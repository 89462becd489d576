//! Tests of the inbox and the reply slots under `loom`: every order of their operations, with a
//! bound on preemptions (`script/loom`).

use std::future::poll_fn;
use std::task::{Poll, Waker};

use bytes::Bytes;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use crate::core::pipeline::{ExpectedReplies, PipelineRequest, Replies};
use crate::error::RequestError;
use crate::inbox::{CloseRequest, Inbox, InboxBounds, WorkerLoad};
use crate::reply_slot::{ReplySlot, RequestResult, SharedReplySlot};

fn open_inbox() -> Arc<Inbox> {
    let bounds = InboxBounds { max_requests: 8, max_unsent_bytes: 1024 };
    let inbox = Inbox::new(bounds, RequestError::Cancelled);
    inbox.set_rejection(None);
    Arc::new(inbox)
}

/// Submits a request of one byte.
fn submit(inbox: &Inbox, byte: u8, sink: SharedReplySlot) -> Result<(), RequestError> {
    let request = PipelineRequest { sink, expect: ExpectedReplies::Replies(1), bytes: 1, timeout: None };
    inbox.submit(&mut vec![byte], request)
}

/// Requests that a worker has taken.
#[derive(Default)]
struct TestWorker {
    requests: Vec<PipelineRequest<SharedReplySlot>>,
    bytes: Vec<u8>,
}

impl TestWorker {
    /// Sleeps until there is work, as the worker does, and takes it.
    fn take(&mut self, inbox: &Inbox) -> CloseRequest {
        let (mut requests, mut bytes) = (Vec::new(), Vec::new());
        let close = block_on(poll_fn(|cx| {
            let close = inbox.take(WorkerLoad::default(), &mut requests, &mut bytes, Some(cx.waker()));
            match (close, requests.is_empty()) {
                (CloseRequest::None, true) => Poll::Pending,
                (CloseRequest::None, false) | (CloseRequest::Requested | CloseRequest::Aborted, _) => {
                    Poll::Ready(close)
                }
            }
        }));
        self.requests.append(&mut requests);
        self.bytes.append(&mut bytes);
        close
    }

    /// Replies to requests with their own byte, until there were `count`.
    fn reply_to(inbox: &Inbox, count: usize) {
        let mut replied = 0;
        while replied < count {
            let mut worker = TestWorker::default();
            assert_eq!(worker.take(inbox), CloseRequest::None);
            for (request, byte) in worker.requests.into_iter().zip(worker.bytes) {
                request.sink.complete(Ok(reply(byte)));
                replied += 1;
            }
        }
    }
}

fn reply(byte: u8) -> Replies {
    Replies { first: Bytes::copy_from_slice(&[byte]), rest: Vec::new() }
}

/// Sends a request and waits for its reply, as [`RequestFuture`](crate::RequestFuture) does.
fn call(inbox: &Inbox, byte: u8) -> RequestResult {
    let mut waiting: Option<SharedReplySlot> = None;
    let result = block_on(poll_fn(|cx| match &waiting {
        Some(slot) => slot.poll(cx),
        None => {
            let slot = ReplySlot::waiting(cx.waker().clone());
            submit(inbox, byte, slot.clone()).expect("the inbox is open");
            waiting = Some(slot);
            Poll::Pending
        }
    }));
    waiting.into_iter().for_each(ReplySlot::recycle);
    result
}

#[test]
fn a_worker_that_goes_to_sleep_misses_no_request() {
    loom::model(|| {
        let inbox = open_inbox();
        let callers = [1, 2].map(|byte| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || submit(&inbox, byte, ReplySlot::waiting(Waker::noop().clone())))
        });
        let mut worker = TestWorker::default();
        while worker.requests.len() < 2 {
            assert_eq!(worker.take(&inbox), CloseRequest::None);
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap().expect("the inbox is open"));
        worker.bytes.sort_unstable();
        assert_eq!(worker.bytes, [1, 2]);
    });
}

#[test]
fn a_close_wakes_the_worker_and_every_accepted_request_is_taken_once() {
    loom::model(|| {
        let inbox = open_inbox();
        let (calling, closing) = (Arc::clone(&inbox), Arc::clone(&inbox));
        let caller = thread::spawn(move || submit(&calling, 1, ReplySlot::waiting(Waker::noop().clone())));
        let closer = thread::spawn(move || closing.request_close());
        let mut worker = TestWorker::default();
        while worker.take(&inbox) == CloseRequest::None {}
        inbox.set_rejection(Some(RequestError::Cancelled));
        inbox.take_remaining(&mut worker.requests, &mut worker.bytes);
        let accepted = usize::from(caller.join().unwrap().is_ok());
        closer.join().unwrap();
        assert_eq!((worker.requests.len(), worker.bytes.len()), (accepted, accepted));
    });
}

#[test]
fn an_abort_wakes_the_worker_and_every_accepted_request_is_taken_once() {
    loom::model(|| {
        let inbox = open_inbox();
        let (calling, aborting) = (Arc::clone(&inbox), Arc::clone(&inbox));
        let caller = thread::spawn(move || submit(&calling, 1, ReplySlot::waiting(Waker::noop().clone())));
        let aborter = thread::spawn(move || {
            aborting.abort();
            submit(&aborting, 2, ReplySlot::waiting(Waker::noop().clone()))
        });
        let mut worker = TestWorker::default();
        loop {
            match worker.take(&inbox) {
                // The link opened meanwhile. That does not undo the abort.
                CloseRequest::None => inbox.set_rejection(None),
                CloseRequest::Requested => unreachable!("no close was requested"),
                CloseRequest::Aborted => break,
            }
        }
        inbox.take_remaining(&mut worker.requests, &mut worker.bytes);
        let accepted = usize::from(caller.join().unwrap().is_ok());
        assert!(matches!(aborter.join().unwrap(), Err(RequestError::Cancelled)));
        assert_eq!((worker.requests.len(), worker.bytes.len()), (accepted, accepted));
    });
}

#[test]
fn concurrent_callers_get_their_own_replies() {
    loom::model(|| {
        let inbox = open_inbox();
        let calling = Arc::clone(&inbox);
        let caller = thread::spawn(move || call(&calling, 1));
        let replying = Arc::clone(&inbox);
        let worker = thread::spawn(move || TestWorker::reply_to(&replying, 2));
        assert_eq!(call(&inbox, 2).unwrap(), reply(2));
        assert_eq!(caller.join().unwrap().unwrap(), reply(1));
        worker.join().unwrap();
    });
}

#[test]
fn a_request_that_moves_to_another_task_is_woken_there() {
    loom::model(|| {
        let slot = ReplySlot::waiting(Waker::noop().clone());
        let sink = slot.clone();
        let worker = thread::spawn(move || sink.complete(Ok(reply(1))));
        assert_eq!(block_on(poll_fn(|cx| slot.poll(cx))).unwrap(), reply(1));
        worker.join().unwrap();
    });
}

#[test]
fn the_reply_to_a_dropped_request_reaches_no_later_caller() {
    loom::model(|| {
        let inbox = open_inbox();
        let replying = Arc::clone(&inbox);
        let worker = thread::spawn(move || TestWorker::reply_to(&replying, 3));
        let dropped = ReplySlot::waiting(Waker::noop().clone());
        submit(&inbox, 1, dropped.clone()).unwrap();
        dropped.abandon();
        drop(dropped);
        // The second call may reuse the first one's slot, which the worker may still hold.
        assert_eq!(call(&inbox, 2).unwrap(), reply(2));
        assert_eq!(call(&inbox, 3).unwrap(), reply(3));
        worker.join().unwrap();
    });
}
