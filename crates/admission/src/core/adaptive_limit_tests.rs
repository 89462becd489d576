//! Tests of the adaptive limit, against a simulated upstream in simulated time.

use proptest::prelude::*;

use super::*;

const STEP: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// An upstream that shares its capacity among the open streams, and slows down by
/// `(open / capacity)^exponent` beyond it. Clients open streams until the limit refuses them.
struct Simulation {
    adaptive: AdaptiveLimit,
    now: Duration,
    capacity: f64,
    exponent: i32,
    /// Work until the first byte, and until the end, without overload.
    head: Duration,
    body: Duration,
    /// Streams that clients want to have open.
    demand: u32,
    fails: bool,
    has_refused: bool,
    process: ProcessSample,
    streams: Vec<SimulatedStream>,
    /// Number of streams so far.
    started: u32,
    /// Streams that ended in less than twice the time without overload.
    good: u32,
}

struct SimulatedStream {
    started_at: Duration,
    open_at_start: u32,
    work: Duration,
    head: Duration,
    total: Duration,
    is_answered: bool,
}

impl Simulation {
    fn new(capacity: u32) -> Self {
        Simulation {
            adaptive: AdaptiveLimit::new(8, 10_000, 8),
            now: Duration::ZERO,
            capacity: f64::from(capacity),
            exponent: 2,
            head: Duration::from_millis(50),
            body: Duration::from_millis(200),
            demand: 2_000,
            fails: false,
            has_refused: false,
            process: ProcessSample::default(),
            streams: Vec::new(),
            started: 0,
            good: 0,
        }
    }

    fn open(&self) -> u32 {
        self.streams.len() as u32
    }

    fn advance(&mut self) {
        self.now += STEP;
        let slowdown = (self.streams.len() as f64 / self.capacity).max(1.0).powi(self.exponent);
        let (now, open, fails, has_refused) = (self.now, self.open(), self.fails, self.has_refused);
        for stream in &mut self.streams {
            stream.work += STEP.div_f64(slowdown);
            if !stream.is_answered && stream.work >= stream.head {
                stream.is_answered = true;
                let (started_at, open_at_start) = (stream.started_at, stream.open_at_start);
                let took = now - started_at;
                let result = if fails { StartResult::Failed } else { StartResult::Answered(took) };
                self.adaptive
                    .record_start(StartSample { started_at, result, open_at_start, open, has_refused }, now);
            }
        }
        let ended = self
            .streams
            .extract_if(.., |stream| stream.work >= stream.total || (fails && stream.is_answered));
        let good =
            ended.filter(|stream| stream.work >= stream.total && now - stream.started_at < stream.total * 2);
        self.good += good.count() as u32;
        let wanted = self.demand.saturating_sub(self.open());
        let free = self.adaptive.limit().saturating_sub(self.open());
        self.has_refused = wanted > free;
        for _ in 0..wanted.min(free) {
            // From 60 % to 140 % of the mean, in a fixed order.
            let vary = |time: Duration, by: u32| time.mul_f64(0.6 + f64::from(by % 17) / 20.0);
            let head = vary(self.head, self.started * 5);
            let total = head + vary(self.body, self.started * 7);
            let (open_at_start, work) = (self.open() + 1, Duration::ZERO);
            let stream =
                SimulatedStream { started_at: now, open_at_start, work, head, total, is_answered: false };
            self.streams.push(stream);
            self.started += 1;
        }
        if now.subsec_millis() == 0 {
            let starting = self.streams.iter().filter(|stream| !stream.is_answered).count() as u32;
            let (open, has_refused) = (self.open(), self.has_refused);
            let sample = ProcessSample { open, starting, has_refused, ..self.process };
            self.adaptive.record_process(sample, now);
        }
        let limit = self.adaptive.limit();
        assert!((self.adaptive.floor()..=self.adaptive.total).contains(&limit), "{limit}");
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.advance();
        }
    }

    /// Returns the goodput over `time`, as a fraction of what the capacity allows.
    fn goodput_ratio(&mut self, time: Duration) -> f64 {
        self.good = 0;
        self.run(time);
        let best = self.capacity * time.as_secs_f64() / (self.head + self.body).as_secs_f64();
        f64::from(self.good) / best
    }
}

/// Asserts that the limit stays between 80 % and 135 % of the capacity for ten seconds, and that
/// the goodput is at least 85 % of what the capacity allows.
#[track_caller]
fn assert_at_capacity(simulation: &mut Simulation) {
    let mut ratios = Vec::new();
    for _ in 0..10 {
        ratios.push(simulation.goodput_ratio(SECOND));
        let ratio = f64::from(simulation.adaptive.limit()) / simulation.capacity;
        assert!((0.8..=1.35).contains(&ratio), "limit {} {:?}", simulation.adaptive.limit(), simulation.now);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean >= 0.85, "{mean} {ratios:?}");
}

#[test]
fn the_limit_converges_to_the_capacity() {
    for (exponent, capacity) in [(1, 100), (2, 100), (3, 100), (2, 1_000), (2, 40)] {
        let mut simulation = Simulation { exponent, ..Simulation::new(capacity) };
        simulation.run(SECOND * 6);
        assert_at_capacity(&mut simulation);
        assert_eq!(simulation.adaptive.last_decrease().unwrap().cause, DecreaseCause::Latency);
    }
}

#[test]
fn the_limit_follows_when_the_capacity_halves_and_doubles() {
    for exponent in [1, 2, 3] {
        let mut simulation = Simulation { exponent, ..Simulation::new(100) };
        simulation.run(SECOND * 10);
        for capacity in [50.0, 100.0, 200.0, 100.0] {
            simulation.capacity = capacity;
            simulation.run(SECOND * 5);
            assert_at_capacity(&mut simulation);
        }
    }
}

#[test]
fn a_slowdown_that_load_does_not_cause_becomes_the_baseline() {
    let mut simulation = Simulation { demand: 300, ..Simulation::new(10_000) };
    simulation.run(SECOND * 10);
    let before = simulation.adaptive.limit();
    assert!(before > 300, "{before}");
    simulation.head *= 4;
    simulation.run(SECOND * 30);
    let baseline = simulation.adaptive.baseline_seconds().unwrap();
    assert!((0.15..0.25).contains(&baseline), "{baseline}");
    assert!(simulation.adaptive.limit() >= 300, "{:?}", simulation.adaptive);
    // It falls again without delay.
    simulation.head /= 4;
    simulation.run(SECOND * 10);
    assert!(simulation.adaptive.baseline_seconds().unwrap() < 0.06, "{:?}", simulation.adaptive);
}

#[test]
fn failures_lower_the_limit_to_the_floor_and_it_recovers_after_them() {
    let mut simulation = Simulation::new(100);
    simulation.run(SECOND * 10);
    simulation.fails = true;
    simulation.run(SECOND * 10);
    assert_eq!(simulation.adaptive.limit(), 8);
    let decrease = simulation.adaptive.last_decrease().unwrap();
    assert_eq!((decrease.cause, decrease.to), (DecreaseCause::Errors, 8));
    simulation.fails = false;
    simulation.run(SECOND * 10);
    assert_at_capacity(&mut simulation);
}

/// Returns `count` starts in simulated time of which this fraction fails, with as many streams open
/// as the limit allows. The others take 10 ms.
fn start_failing(adaptive: &mut AdaptiveLimit, now: &mut Duration, count: u32, failed: impl Fn(u32) -> f64) {
    let mut owed = 0.0;
    for _ in 0..count {
        *now += Duration::from_millis(5);
        let open = adaptive.limit();
        owed += failed(open);
        let result = if owed >= 1.0 { StartResult::Failed } else { answered(10) };
        owed -= owed.floor();
        start(adaptive, result, open, *now);
    }
}

#[test]
fn failures_that_load_does_not_cause_lower_the_limit_only_for_a_while() {
    for ratio in [0.15, 0.3, 0.6] {
        let mut adaptive = AdaptiveLimit::new(8, 200, 8);
        let mut now = Duration::ZERO;
        start_failing(&mut adaptive, &mut now, 4_000, |_| 0.0);
        assert_eq!(adaptive.limit(), 200);
        start_failing(&mut adaptive, &mut now, 8_000, |_| ratio);
        assert_eq!(adaptive.limit(), 200, "{ratio} {adaptive:?}");
        let before = adaptive.last_decrease();
        start_failing(&mut adaptive, &mut now, 8_000, |_| ratio);
        assert_eq!(adaptive.last_decrease(), before, "{ratio}");
        // When the failures have ended, new ones lower it again.
        start_failing(&mut adaptive, &mut now, 4_000, |_| 0.0);
        start_failing(&mut adaptive, &mut now, 200, |_| 0.9);
        assert!(adaptive.last_decrease() != before, "{ratio}");
    }
}

/// An upstream with room for 60 streams that refuses the rest. A tenth fails anyway.
#[test]
fn failures_that_load_causes_keep_the_limit_near_the_capacity() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 8);
    let mut now = Duration::ZERO;
    let failed = |open: u32| 0.1 + 0.9 * (1.0 - 60.0 / f64::from(open)).max(0.0);
    start_failing(&mut adaptive, &mut now, 10_000, failed);
    let mut highest = 0;
    for _ in 0..200 {
        start_failing(&mut adaptive, &mut now, 50, failed);
        highest = highest.max(adaptive.limit());
        assert!(adaptive.limit() >= 30, "{adaptive:?}");
    }
    assert!(highest <= 120, "{highest} {adaptive:?}");
}

/// Half of the starts hang for 20 seconds. Then they fail, are answered, or their clients leave.
#[test]
fn starts_that_hang_count_while_others_are_fast() {
    for (hung, cause) in [
        (StartResult::Failed, DecreaseCause::Errors),
        (StartResult::Answered(SECOND * 20), DecreaseCause::Latency),
        (StartResult::Abandoned(SECOND * 20), DecreaseCause::Latency),
    ] {
        let mut adaptive = AdaptiveLimit::new(8, 200, 100);
        for at in 0..6_000_u64 {
            let now = Duration::from_millis(at * 5);
            let open = adaptive.limit();
            start(&mut adaptive, answered(10), open, now);
            if let Some(started_at) = now.checked_sub(SECOND * 20) {
                adaptive.record_start(sample(hung, open, started_at), now);
            }
        }
        let decrease = adaptive.last_decrease();
        assert_eq!(decrease.map(|decrease| decrease.cause), Some(cause), "{hung:?}");
    }
}

#[test]
fn a_few_failures_lower_nothing() {
    let mut adaptive = AdaptiveLimit::new(8, 100, 50);
    for at in 0..1_000 {
        let result = if at % 20 == 0 { StartResult::Failed } else { answered(10) };
        start(&mut adaptive, result, 30, Duration::from_millis(at * 10));
    }
    assert_eq!((adaptive.limit(), adaptive.last_decrease()), (50, None));
}

/// With few starts, one failure is a large fraction of a window.
#[test]
fn single_failures_of_a_few_starts_lower_nothing() {
    let mut adaptive = AdaptiveLimit::new(8, 100, 50);
    for at in 0..1_000 {
        let result = if at % 30 == 0 { StartResult::Failed } else { answered(10) };
        start(&mut adaptive, result, 20, Duration::from_millis(at * 250));
    }
    assert_eq!((adaptive.limit(), adaptive.last_decrease()), (50, None));
}

#[test]
fn an_unused_limit_is_not_raised() {
    let mut simulation = Simulation { demand: 20, ..Simulation::new(1_000) };
    simulation.run(SECOND * 60);
    assert!((20..50).contains(&simulation.adaptive.limit()), "{:?}", simulation.adaptive);
}

#[test]
fn the_limit_of_a_class_counts_as_used_once_it_refuses() {
    for open in [7, 2] {
        let mut adaptive = AdaptiveLimit::new(10, 100, 10);
        let mut now = Duration::ZERO;
        for _ in 0..40 {
            now += Duration::from_millis(20);
            let sample = StartSample { has_refused: true, ..sample(answered(10), open, now) };
            adaptive.record_start(sample, now);
        }
        assert!(adaptive.limit() > 10, "{adaptive:?}");
    }
}

fn answered(millis: u64) -> StartResult {
    StartResult::Answered(Duration::from_millis(millis))
}

fn sample(result: StartResult, open: u32, started_at: Duration) -> StartSample {
    StartSample { started_at, result, open_at_start: open, open, has_refused: false }
}

fn start(adaptive: &mut AdaptiveLimit, result: StartResult, open: u32, now: Duration) {
    adaptive.record_start(sample(result, open, now), now);
}

#[test]
fn without_evidence_the_limit_does_not_change() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
    for second in 0..100_000 {
        // Streams are open, and none is refused. Or some are refused while others start.
        let (starting, has_refused) = if second % 2 == 0 { (0, false) } else { (3, true) };
        let sample = ProcessSample { memory: Some(0.5), cpu: Some(0.5), open: 64, starting, has_refused };
        adaptive.record_process(sample, Duration::from_secs(second));
    }
    assert_eq!(adaptive.limit(), 64);
}

/// Streams that never end leave no room for starts, which alone could show that the upstream can
/// carry more.
#[test]
fn refused_requests_raise_the_limit_if_no_stream_starts() {
    let mut simulation = Simulation { body: SECOND * 100_000, demand: 400, ..Simulation::new(300) };
    simulation.run(SECOND * 60);
    assert!((290..=400).contains(&simulation.open()), "{:?}", simulation.adaptive);
}

/// Streams of ten minutes: hardly any window is complete, and a lower limit ends none of them.
#[test]
fn long_streams_settle_near_the_capacity() {
    let mut simulation = Simulation { body: SECOND * 600, demand: 5_000, ..Simulation::new(300) };
    simulation.run(SECOND * 120);
    assert!(simulation.open() >= 270, "{} {:?}", simulation.open(), simulation.adaptive);
    for _ in 0..20 {
        simulation.run(SECOND * 30);
        assert!(simulation.open() <= 405, "{} at {:?}", simulation.open(), simulation.now);
    }
    assert!(simulation.open() >= 240, "{} {:?}", simulation.open(), simulation.adaptive);
}

/// All streams that the floor allows are open for long, so no window can show that the failures are
/// over.
#[test]
fn after_failures_refused_requests_raise_the_limit_above_the_floor() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 8);
    let mut now = Duration::ZERO;
    for _ in 0..200 {
        now += Duration::from_millis(20);
        start(&mut adaptive, StartResult::Failed, 8, now);
    }
    assert_eq!(adaptive.limit(), 8);
    for _ in 0..600 {
        now += SECOND;
        let sample = ProcessSample { open: adaptive.limit(), has_refused: true, ..ProcessSample::default() };
        adaptive.record_process(sample, now);
    }
    assert!(adaptive.limit() > 100, "{adaptive:?}");
}

#[test]
fn after_a_slowdown_refused_requests_raise_the_limit_only_after_a_long_time() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
    let mut now = Duration::ZERO;
    for millis in [10, 40] {
        for _ in 0..40 {
            now += Duration::from_millis(20);
            start(&mut adaptive, answered(millis), 64, now);
        }
    }
    let lowered = adaptive.limit();
    assert!(lowered < 64, "{adaptive:?}");
    let refused = ProcessSample { open: 64, has_refused: true, ..ProcessSample::default() };
    adaptive.record_process(refused, now + CAUTIOUS_PROBE_AFTER / 2);
    assert_eq!(adaptive.limit(), lowered);
    now += CAUTIOUS_PROBE_AFTER;
    adaptive.record_process(refused, now);
    assert!(adaptive.limit() > lowered, "{adaptive:?}");
    // More streams are slow again, so the next increase comes after twice the time.
    for _ in 0..20 {
        now += Duration::from_millis(200);
        start(&mut adaptive, answered(40), 64, now);
    }
    let lowered = adaptive.limit();
    adaptive.record_process(refused, now + CAUTIOUS_PROBE_AFTER * 3 / 2);
    assert_eq!(adaptive.limit(), lowered);
    adaptive.record_process(refused, now + CAUTIOUS_PROBE_AFTER * 2);
    assert!(adaptive.limit() > lowered, "{adaptive:?}");
}

/// Between two increases because of refused requests, too few streams start for a window.
#[test]
fn a_few_slow_starts_after_each_increase_lower_the_limit() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
    let mut now = Duration::ZERO;
    for _ in 0..40 {
        now += Duration::from_millis(20);
        start(&mut adaptive, answered(10), 20, now);
    }
    for _ in 0..10 {
        (0..3).for_each(|_| start(&mut adaptive, answered(40), 64, now));
        now += SECOND;
        let sample = ProcessSample { open: 64, has_refused: true, ..ProcessSample::default() };
        adaptive.record_process(sample, now);
    }
    let cause = adaptive.last_decrease().map(|decrease| decrease.cause);
    assert_eq!(cause, Some(DecreaseCause::Latency), "{adaptive:?}");
}

#[test]
fn clients_that_leave_before_the_first_byte_count_if_they_waited_for_long() {
    let lowered = |waited: u64| {
        let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
        let mut now = Duration::ZERO;
        for at in 0..80 {
            now += Duration::from_millis(20);
            let left = StartResult::Abandoned(Duration::from_millis(waited));
            start(&mut adaptive, if at < 40 { answered(10) } else { left }, 64, now);
        }
        adaptive.last_decrease().is_some()
    };
    assert!(lowered(50) && !lowered(5));
}

#[test]
fn streams_that_started_before_a_change_are_no_evidence() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
    let mut now = Duration::ZERO;
    for millis in [10, 40] {
        for _ in 0..20 {
            now += Duration::from_millis(20);
            start(&mut adaptive, answered(millis), 64, now);
        }
    }
    let decrease = adaptive.last_decrease().unwrap();
    for _ in 0..1_000 {
        now += Duration::from_millis(20);
        adaptive.record_start(sample(answered(400), 64, decrease.at - STEP), now);
    }
    assert_eq!(adaptive.last_decrease(), Some(decrease));
}

#[test]
fn pressure_lowers_the_limit_step_by_step_and_keeps_it_from_rising() {
    for (memory, cpu, cause) in
        [(Some(0.95), None, DecreaseCause::Memory), (Some(0.2), Some(0.97), DecreaseCause::Cpu)]
    {
        let mut simulation = Simulation { demand: 100, ..Simulation::new(10_000) };
        simulation.run(SECOND * 5);
        assert_eq!(simulation.open(), 100);
        let before = simulation.adaptive.limit();
        simulation.process = ProcessSample { memory, cpu, ..ProcessSample::default() };
        simulation.run(SECOND * 2);
        assert_eq!(simulation.adaptive.last_decrease().unwrap().cause, cause);
        assert_eq!(simulation.adaptive.limit(), before * 9 / 10, "not used up, so it falls by a tenth");
        simulation.run(SECOND * 300);
        assert_eq!(simulation.adaptive.limit(), 8);
        let relieved = |fraction: f64| memory.map(|_| fraction);
        simulation.process = ProcessSample { memory: relieved(0.87), cpu: Some(0.87), ..simulation.process };
        simulation.run(SECOND * 10);
        assert_eq!(simulation.adaptive.limit(), 8);
        simulation.process = ProcessSample { memory: relieved(0.5), cpu: Some(0.5), ..simulation.process };
        simulation.run(SECOND * 10);
        assert_eq!(simulation.open(), 100);
    }
}

#[test]
fn a_total_below_the_floor_is_the_limit() {
    let mut adaptive = AdaptiveLimit::new(8, 1_000, 64);
    adaptive.set_total(5);
    assert_eq!((adaptive.limit(), adaptive.floor()), (5, 5));
    adaptive.set_total(1_000);
    assert_eq!((adaptive.limit(), adaptive.floor()), (8, 8), "the limit is within its bounds again");
    assert_eq!(AdaptiveLimit::new(0, 0, 7).limit(), 0);
}

#[test]
fn a_limit_that_began_at_the_total_follows_it_unless_it_was_lowered() {
    let mut adaptive = AdaptiveLimit::new(8, 100, 100);
    adaptive.set_total(1_000);
    assert_eq!(adaptive.limit(), 1_000);
    let pressed = ProcessSample { memory: Some(1.0), open: 3, ..ProcessSample::default() };
    adaptive.record_process(pressed, SECOND);
    adaptive.set_total(2_000);
    assert_eq!(adaptive.limit(), 900);
}

proptest! {
    #[test]
    fn the_limit_stays_within_its_bounds_whatever_happens(
        floor in 0_u32..50,
        total in 0_u32..200,
        events in prop::collection::vec((0_u8..12, 0_u32..300, 0_u64..200, 0.0_f64..1.2), 1..600),
    ) {
        let mut adaptive = AdaptiveLimit::new(floor, total, floor);
        let mut now = Duration::ZERO;
        let mut is_slow = false;
        for (kind, open, millis, fraction) in events {
            now += Duration::from_millis(millis);
            let took = Duration::from_millis(if is_slow { millis * 10 } else { millis / 10 });
            let result = match kind {
                0 => StartResult::Failed,
                1 => StartResult::Abandoned(took),
                _ => StartResult::Answered(took),
            };
            match kind {
                8 | 9 => {
                    let sample = ProcessSample {
                        memory: Some(fraction),
                        cpu: Some(fraction),
                        open,
                        starting: open % 2,
                        has_refused: millis % 2 == 0,
                    };
                    adaptive.record_process(sample, now);
                }
                10 => adaptive.set_total(open),
                11 => is_slow = !is_slow,
                _ => {
                    let sample = StartSample { has_refused: millis % 2 == 0, ..sample(result, open, now) };
                    adaptive.record_start(sample, now);
                }
            }
            prop_assert!((adaptive.floor()..=adaptive.total).contains(&adaptive.limit()), "{:?}", adaptive);
        }
    }
}
