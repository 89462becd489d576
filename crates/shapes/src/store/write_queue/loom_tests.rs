//! The queue under every interleaving of its threads: `script/loom`.
//!
//! `Notify` and `oneshot` are tokio's. Loom doesn't look into them: a call of them is one step.

use std::time::Duration;

use bytes::Bytes;
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;
use tokio::sync::oneshot;

use super::*;
use crate::store::record::Note;

fn job(lsn: u64) -> (WriteJob, oneshot::Receiver<()>) {
    let (done, durable) = oneshot::channel();
    let record = Record::Note(Note::Advance { lsn }, Bytes::new());
    (WriteJob { record, done: Some(done), after: AfterWrite::Nothing }, durable)
}

/// Takes batches until the queue is closed and empty, and completes their jobs.
fn write_all(queue: &WriteQueue) -> usize {
    let mut written = 0;
    while let Some(jobs) = queue.take_batch(Duration::ZERO) {
        written += jobs.len();
        for done in jobs.into_iter().filter_map(|job| job.done) {
            let _sent = done.send(());
        }
        queue.finish_batch();
    }
    written
}

#[test]
fn every_job_is_taken_once_and_no_wake_up_is_lost() {
    loom::model(|| {
        let queue = Arc::new(WriteQueue::default());
        let writer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || write_all(&queue))
        };
        let durable = [1, 2].map(|lsn| {
            let (job, durable) = job(lsn);
            queue.push(job);
            durable
        });
        let written = durable.map(|durable| block_on(durable).is_ok());
        queue.close();
        assert_eq!((written, writer.join().unwrap()), ([true, true], 2));
    });
}

#[test]
fn a_job_pushed_while_the_queue_closes_is_written_or_its_waiter_is_told() {
    loom::model(|| {
        let queue = Arc::new(WriteQueue::default());
        let closer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.close())
        };
        let pusher = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let (job, durable) = job(1);
                queue.push(job);
                durable
            })
        };
        let written = write_all(&queue);
        closer.join().unwrap();
        let durable = block_on(pusher.join().unwrap());
        assert_eq!(durable.is_ok(), written == 1);
    });
}

#[test]
fn a_waiter_for_room_is_woken_by_a_written_batch_and_by_the_end() {
    for abandons in [false, true] {
        loom::model(move || {
            let queue = Arc::new(WriteQueue::default());
            let (first, durable) = job(1);
            queue.push(first);
            let other = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || match abandons {
                    true => queue.abandon(),
                    false => {
                        drop(queue.take_batch(Duration::ZERO));
                        queue.finish_batch();
                    }
                })
            };
            block_on(queue.wait_for_room(1));
            other.join().unwrap();
            assert!(block_on(durable).is_err(), "its job was dropped");
        });
    }
}
