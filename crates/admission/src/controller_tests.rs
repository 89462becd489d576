//! Tests of the admission controller.

use std::thread;

use forebay_quota::Usage;

use super::*;
use crate::admission::Admission;
use crate::config::AdaptiveSignals;
use crate::thread_id::ThreadId;

fn controller(config: Builder) -> Arc<AdmissionController> {
    Arc::new(AdmissionController::new(config, Quota::local()))
}

fn anonymous(controller: &AdmissionController) -> usize {
    controller.class_index(&ClientIdentity::anonymous())
}

#[tokio::test]
async fn a_closed_and_empty_controller_registers_no_stream_that_was_being_admitted() {
    let controller = controller(Admission::builder());
    let class = anonymous(&controller);
    let admitted = controller.acquire(None, class).await.unwrap();
    controller.close();
    assert_eq!(controller.registry.open(), 0, "the registry is empty");
    assert!(controller.register(labels(&ThreadId::random()), class, admitted).is_none());
    assert_eq!((controller.registry.open(), controller.budget.usage().used), (0, 0));
}

/// A waiter for an empty registry may observe the entry that is removed again, so it must be
/// notified.
#[tokio::test]
async fn a_registration_that_is_undone_notifies_waiters_for_an_empty_registry() {
    let controller = controller(Admission::builder());
    let class = anonymous(&controller);
    let admitted = controller.acquire(None, class).await.unwrap();
    controller.close();
    let mut emptied = pin!(controller.emptied.notified());
    emptied.as_mut().enable();
    drop(controller.register(labels(&ThreadId::random()), class, admitted));
    tokio::time::timeout(Duration::from_secs(1), emptied).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_joins_the_queue_after_closing_is_rejected_immediately() {
    let controller = controller(Admission::builder().wait(Duration::from_secs(3_600)));
    controller.close();
    let started = tokio::time::Instant::now();
    let rejection = controller.wait_for_unit(None).await.err().unwrap();
    assert_eq!((rejection.reason, started.elapsed()), (RejectionReason::Draining, Duration::ZERO));
    assert_eq!(controller.queue.len(), 0);
}

/// Both requests acquired a unit before either was checked. One is refused. The other one is
/// checked after that unit is released.
#[tokio::test]
async fn of_two_concurrent_requests_for_the_last_unit_of_a_share_one_is_admitted() {
    let controller = controller(Admission::builder().total(4));
    let _open = controller.budget.take().await.unwrap();
    let take = async || controller.take_unit().await.ok().unwrap();
    let (one, two) = (take().await, take().await);
    let share_check = controller.share_check.lock();
    let kept = thread::scope(|scope| {
        let other = scope.spawn(|| controller.keep_within_share(two, 50));
        // Long enough for the check, if the lock did not block it.
        thread::sleep(Duration::from_millis(20));
        drop(one);
        drop(share_check);
        other.join().unwrap()
    });
    assert!(kept.is_some());
    let third = take().await;
    assert!(controller.keep_within_share(third, 50).is_none());
}

/// A unit from the wait queue is acquired without a look at the class.
#[tokio::test]
async fn a_unit_beyond_the_share_of_the_adaptive_limit_is_released() {
    let builder = Admission::builder().total(100).adaptive(4, AdaptiveSignals::StartsAndProcess);
    let controller = controller(builder);
    let take = async || controller.take_unit().await.ok().unwrap();
    let _open = [take().await, take().await];
    let third = take().await;
    assert!(controller.keep_within_share(third, 50).is_none());
    assert_eq!(controller.adaptive.as_ref().unwrap().open(), 2);
    assert!(controller.keep_within_share(take().await, 75).is_some());
}

#[tokio::test]
async fn only_server_side_rejections_count_as_competing_retries() {
    let controller = controller(Admission::builder());
    for reason in RejectionReason::ALL {
        let before = controller.refused.load(Ordering::Relaxed);
        controller.record_rejection(&Rejection::new(reason, None), &ThreadId::random(), None);
        let counted = controller.refused.load(Ordering::Relaxed) - before;
        assert_eq!(counted, u64::from(reason.status().is_server_error()), "{reason:?}");
    }
}

#[test]
fn a_nonzero_share_is_at_least_one_stream() {
    let exceeds_share = |used, percent| {
        let usage = Usage { used_here: used, slice: 10, used, limit: 10, pressure: false };
        super::exceeds_share(usage, percent, 1)
    };
    assert!(!exceeds_share(0, 1) && exceeds_share(1, 1));
    assert!(!exceeds_share(4, 50) && exceeds_share(5, 50));
    assert!(exceeds_share(0, 0));
}

fn labels(thread: &ThreadId) -> StreamLabels<'_> {
    StreamLabels { thread, hash: None, route: None }
}
