//! The consistency oracle: random writers, random shapes, strict clients; and Postgres is asked what the truth was.
//!
//! Holds, at each up-to-date of each client: its rows are exactly those that the table had between two commits, namely after all that
//! lie before the position that up-to-date tells, and all that its snapshot saw. And a handle that was complete stays, whatever breaks, unless it is deleted.
//!
//! `script/soak MINUTES` does it for longer, and looks at the server's memory and descriptors meanwhile.
//! `FOREBAY_SEED` sets a seed, `FOREBAY_SECONDS` takes longer. What the tasks do is the seed's; when they do it, is not.

mod clauses;
mod client;
mod history;
mod plot;
mod soak;
mod storm;
mod view;
mod wire;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::Dice;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};

use self::client::{Client, Life, World};
use self::history::{History, SCHEMA, last_commit, now};
use self::soak::Samples;
use self::storm::{Faults, Stage};
use self::writers::Writers;
use super::support::Place;

const CLIENTS: usize = 50;
const WRITERS: usize = 3;
/// Of a long run: so many that nobody's shape goes while it is used.
const MAX_SHAPES: usize = 8 * CLIENTS;
/// How long clients may take to see the end, once all is well.
const CALM_DOWN: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_see_what_the_table_was_between_two_commits() {
    run(Weather::Calm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kills_restarts_and_cuts_change_nothing_for_clients() {
    run(Weather::Stormy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes as long as it is told to: script/soak"]
async fn hours_of_it_leave_memory_and_descriptors_as_they_are() {
    run(Weather::Long).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    Calm,
    Stormy,
    /// Stormy; but after a third of the time the server is killed no more, so that its memory tells something.
    Long,
}

async fn run(weather: Weather) {
    let is_stormy = weather != Weather::Calm;
    let seed = forebay_testkit::seed();
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(10, |text| text.parse().expect("a number"));
    eprintln!("FOREBAY_SEED={seed} FOREBAY_SECONDS={seconds}, stormy: {is_stormy}");
    let postgres = Box::leak(Box::new(Postgres::builder().start().unwrap()));
    let place = Place::on(postgres, SCHEMA);
    History::begin(&place);
    let mut dice = Dice::of(seed, "stage", 0);
    let mut settings = settings(&mut dice);
    if weather == Weather::Long {
        // Clients come and go, and their shapes would stay: each change would concern more and more of them.
        settings.push(("FOREBAY_STORAGE_MAX_SHAPES", MAX_SHAPES.to_string()));
    }
    eprintln!("{settings:?}");
    let is_merged = !settings.contains(&("FOREBAY_STORAGE_COMPACT_BYTES", "0".to_owned()));
    let mut stage = Stage::set(&place, &settings).await;

    let writers = Writers::start(&place, seed, WRITERS);
    let (target, targeted) = watch::channel(None);
    let server = if is_stormy { stage.addr() } else { stage.direct() };
    let world = Arc::new(World::new(server, is_stormy, is_merged, targeted));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (world, dice) = (Arc::clone(&world), Dice::of(seed, "client", number));
        clients.spawn(async move { Client::new(&world, dice).run().await });
    }
    let (samples, pid) = (Samples::default(), stage.pid());
    let faults = tokio::select! {
        faults = change(weather, &mut stage, &mut dice, Duration::from_secs(seconds)) => Ok(faults),
        Some(ended) = clients.join_next() => Err(wrong(ended)),
        () = samples.watch(move || pid.load(Ordering::Relaxed)), if weather == Weather::Long => unreachable!("it goes on"),
    };
    let faults = faults.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}\n{}", stage.log()));
    let committed = writers.stop().await;
    let end = block_in_place(|| last_commit(&place));
    target.send(Some(end)).unwrap();
    let mut lives = Vec::new();
    let gathered = timeout(CALM_DOWN, async {
        while let Some(ended) = clients.join_next().await {
            match ended {
                Ok(Ok(seen)) => lives.extend(seen),
                ended => panic!("seed {seed}: {}", wrong(ended)),
            }
        }
    });
    let in_time = gathered.await.is_ok();
    assert!(in_time, "seed {seed}: clients haven't seen {end} after {CALM_DOWN:?}\n{}", stage.log());
    block_in_place(|| judge(&place, &lives, seed));
    report(&lives, &world, &faults, committed, is_stormy);
    if weather == Weather::Long {
        samples.conclude(Path::new(env!("CARGO_TARGET_TMPDIR")));
    }
}

async fn change(weather: Weather, stage: &mut Stage<'_>, dice: &mut Dice, lasts: Duration) -> Faults {
    let begun = Instant::now();
    match weather {
        Weather::Calm => {
            sleep(lasts).await;
            Faults::default()
        }
        Weather::Stormy => {
            // A busy machine could spend all the time on the faults, and then there is nobody whom they harm.
            stage.has_shapes(CLIENTS / 5).await;
            let until = Instant::now() + lasts;
            stage.rage(dice, until, until).await
        }
        Weather::Long => stage.rage(dice, begun + lasts / 3, begun + lasts).await,
    }
}

/// Small sizes, so that chunks close, files are written and logs are cut all the time.
fn settings(dice: &mut Dice) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("FOREBAY_SERVE_ALLOW_DELETE", "true".to_owned()),
        ("FOREBAY_DATABASE_POOL_SIZE", "8".to_owned()),
        ("FOREBAY_SERVE_LONG_POLL_MS", "1000".to_owned()),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "500".to_owned()),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", dice.pick(&[300, 1000, 3000]).to_string()),
        ("FOREBAY_DATABASE_LOCK_CHECK_MS", "500".to_owned()),
        ("FOREBAY_STORAGE_CHUNK_BYTES", dice.pick(&[2048, 8192, 65_536, 10 << 20]).to_string()),
        ("FOREBAY_STORAGE_SMALL_SNAPSHOT_BYTES", dice.pick(&[0, 8192, 262_144]).to_string()),
        ("FOREBAY_STORAGE_OPEN_FILES", dice.pick(&[1, 8, 512]).to_string()),
        ("FOREBAY_STORAGE_COMPACT_BYTES", dice.pick(&[0, 4096, 65_536]).to_string()),
    ];
    if dice.percent(70) {
        settings.push(("FOREBAY_STORAGE_UNWRITTEN_BYTES", (64 << 10).to_string()));
        settings.push(("FOREBAY_STORAGE_WAL_BYTES", (1 << 20).to_string()));
    }
    settings
}

/// Against what really happened.
fn judge(place: &Place, lives: &[Life], seed: u64) {
    let history = History::read(place);
    eprintln!("{} lives, {} transactions", lives.len(), history.transactions());
    let mut told = Instant::now();
    for (number, life) in lives.iter().enumerate() {
        if told.elapsed() > Duration::from_secs(10) {
            eprintln!("{number} lives are compared");
            told = Instant::now();
        }
        let Life { wanted, handle, sight, checkpoints, rows, recent, .. } = life;
        if let Some(rows) = rows {
            assert_eq!(*rows, now(place, wanted), "seed {seed}: {handle} isn't as it is now: {wanted:?}");
        }
        let Some(((first, _), (last, _))) = checkpoints.first().zip(checkpoints.last()) else { continue };
        let states = history.states(place, wanted, sight, *first..=*last);
        for (seen, digest) in checkpoints {
            let truth = states.at(*seen);
            assert!(
                *digest == truth,
                "seed {seed}: {handle} was {digest:?} at {seen}, not {truth:?}; it should be so at {:?}\n around: {:?}\n \
                 {wanted:?}\n checkpoints: {:?}\n  {recent}",
                states.find(*digest),
                states.around(*seen),
                &checkpoints[checkpoints.len().saturating_sub(5)..],
            );
        }
    }
}

fn report(lives: &[Life], world: &World, faults: &Faults, committed: u64, is_stormy: bool) {
    let sum = |count: fn(&Life) -> u64| lives.iter().map(count).sum::<u64>();
    let (changes, moves) = (sum(|life| life.counts.changes), sum(|life| life.counts.moves));
    let (up_to_dates, checked) =
        (sum(|life| life.counts.up_to_dates), sum(|life| life.checkpoints.len() as u64));
    let deleted = world.deleted();
    let ledger = world.ledger();
    eprintln!(
        "{committed} scripts, {} lives, {changes} changes, {moves} changed keys, {up_to_dates} up-to-dates, {checked} states \
         checked, {deleted} deleted, {} refetches, {} breaks, {} refusals, {} torn streams, {faults:?}",
        lives.len(),
        ledger.refetches,
        ledger.breaks,
        ledger.refusals,
        ledger.torn,
    );
    // Far below what an idle machine does in ten seconds: a run in which nothing happens proves nothing.
    let enough =
        committed > 50 && changes > 1000 && moves > 10 && checked > 2 * CLIENTS as u64 && deleted > 0;
    assert!(enough, "nearly nothing happened");
    assert!(ledger.torn > 5, "no stream was cut between two up-to-dates");
    let of_each = faults.kills > 0 && faults.restarts > 0 && faults.cuts > 1;
    assert!(!is_stormy || of_each, "there was no storm: {faults:?}");
}

fn wrong(ended: Result<Result<Vec<Life>, String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(_)) => "a client ended before its time".to_owned(),
        Ok(Err(wrong)) => wrong,
        Err(error) => error.to_string(),
    }
}
