//! The consistency oracle: random writers, random shapes, strict clients; and Postgres is asked what the truth was.
//!
//! Holds, at each up-to-date of each client: its rows are exactly those that the table had between two commits, namely after all that
//! lie before the position that up-to-date tells, and all that its snapshot saw. And a handle that was complete stays, whatever breaks, unless it is deleted.
//! Tables whose definitions or publication change are judged by the clock, too: `journal.rs` says
//! how.
//!
//! | to find | look in |
//! |---|---|
//! | tables whose rows change, of all kinds; who writes them; what they were | `tables.rs`, `writers.rs`, `history.rs` |
//! | tables whose definitions change; who changes them; which states may be seen | `changing.rs`, `journal.rs` |
//! | clients, as the published one resumes; the rules for messages | `client.rs`, `view.rs`, `wire.rs` |
//! | kills, restarts, cuts | `storm.rs` |
//! | commits that wait for a standby; slow clients of a log that is made short | `standby.rs`, `slow.rs` |
//! | hours of it, memory and descriptors | `soak.rs` |
//!
//! `script/soak MINUTES` does it for longer, and looks at the server's memory and descriptors
//! meanwhile. `FOREBAY_SEEDS=1..=100 script/nightly` tries
//! seed after seed. `FOREBAY_SEED` sets a seed, which also picks the version of Postgres and the
//! collation; `FOREBAY_SECONDS` takes longer;
//! `FOREBAY_TABLES` and `FOREBAY_CHANGES` leave only some tables and changes. What the tasks do is
//! the seed's; when they do it, is not.

mod changing;
mod clauses;
mod client;
mod history;
mod journal;
mod plot;
mod slow;
mod soak;
mod standby;
mod storm;
mod tables;
mod view;
mod wire;
mod writers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::Dice;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use self::changing::{Change, Surgeons};
use self::client::{Client, Life, Target, World, listed};
use self::history::{Crash, Histories, Sight, States, last_commit, now};
use self::journal::{CALM, Journal, NOTICE, NOTICE_IN_STORM, Verdicts};
use self::soak::Samples;
use self::storm::{Faults, Stage};
use self::tables::Rules;
use self::view::Checkpoint;
use self::writers::Writers;
use super::support::Place;

const CLIENTS: usize = 50;
const WRITERS: usize = 3;
/// Of a long run: so many that nobody's shape goes while it is used.
const MAX_SHAPES: usize = 8 * CLIENTS;
/// How long clients may take to come closer to the end, once all is well.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_that_change_under_their_shapes_are_soon_served_as_they_are() {
    run(Weather::Changing).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    Calm,
    Stormy,
    /// Calm; but what changes is the definition of tables, and who publishes them.
    Changing,
    /// Stormy; but after a third of the time the server is killed no more, so that its memory tells something.
    Long,
}

async fn run(weather: Weather) {
    let is_stormy = matches!(weather, Weather::Stormy | Weather::Long);
    let seed = forebay_testkit::seed();
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(10, |text| text.parse().expect("a number"));
    let ground = Ground::of(seed, weather);
    eprintln!("FOREBAY_SEED={seed} FOREBAY_SECONDS={seconds}, {weather:?}, {ground:?}");
    let place = ground.place();
    history::begin(&place);
    place.sql(tables::ROWS);
    let mut dice = Dice::of(seed, "stage", 0);
    let mut settings = settings(&mut dice, weather);
    if weather == Weather::Long {
        // Clients come and go, and their shapes would stay: each change would concern more and more of them.
        settings.push(("FOREBAY_STORAGE_MAX_SHAPES", MAX_SHAPES.to_string()));
    }
    eprintln!("{settings:?}");
    let is_merged = !settings.contains(&("FOREBAY_STORAGE_COMPACT_BYTES", "0".to_owned()));
    let mut stage = Stage::set(&place, &settings, is_stormy).await;

    // A chunk for each row would be a request for each row: clients would never catch up.
    let has_tiny_chunks = settings.contains(&("FOREBAY_STORAGE_CHUNK_BYTES", "2048".to_owned()));
    let is_heavy = weather == Weather::Calm && !has_tiny_chunks;
    let (has_rows, has_changes) = (weather != Weather::Changing, weather.changes());
    let writers = Writers::start(&place, seed, if has_rows { WRITERS } else { 0 }, is_heavy);
    let journal = Arc::new(Journal::new(if is_stormy { NOTICE_IN_STORM } else { NOTICE }));
    let surgeons = has_changes
        .then(|| block_in_place(|| Surgeons::start(&place, seed, ground.version, has_rows, &journal)));
    let (target, targeted) = watch::channel(None);
    let server = if is_stormy { stage.addr() } else { stage.direct() };
    let world = World::new(server, is_stormy, is_merged, ground, Arc::clone(&journal), targeted);
    let world = Arc::new(world);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (world, dice) = (Arc::clone(&world), Dice::of(seed, "client", number));
        let is_changing = has_changes && (number % 3 == 0 || !has_rows);
        // Each table has some clients of its own.
        let table = tables::asked().iter().cycle().take(2 * tables::asked().len()).nth(number).copied();
        clients.spawn(async move { Client::new(&world, dice, is_changing, table).run().await });
    }
    let (samples, pid) = (Samples::default(), stage.pid());
    let faults = tokio::select! {
        faults = async {
            let faults = change(weather, &mut stage, &mut dice, Duration::from_secs(seconds)).await;
            if has_rows {
                world.has_much_to_judge().await;
            }
            faults
        } => Ok(faults),
        Some(ended) = clients.join_next() => Err(wrong(ended)),
        () = samples.watch(move || pid.load(Ordering::Relaxed)), if weather == Weather::Long => unreachable!("it goes on"),
    };
    let faults = faults.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let committed = writers.stop().await;
    let changed = block_in_place(|| surgeons.map(Surgeons::stop).unwrap_or_default());
    block_in_place(|| place.sql(tables::LAST));
    let end = block_in_place(|| last_commit(&place));
    let calm = if has_rows { CALM_DOWN } else { CALM };
    target.send(Some(Target { position: end, patience: calm })).unwrap();
    let mut lives = Vec::new();
    while let Some(ended) = clients.join_next().await {
        match ended {
            Ok(Ok(seen)) => lives.extend(seen),
            ended => panic!("seed {seed}: {}", wrong(ended)),
        }
    }
    let verdicts = block_in_place(|| judge(&place, &lives, &journal, &faults.crashes, seed));
    if has_rows {
        report(&lives, &world, &faults, committed, is_stormy);
    }
    if has_changes {
        report_changes(&lives, &world, verdicts, &changed, seconds);
    }
    if weather == Weather::Long {
        samples.conclude(Path::new(env!("CARGO_TARGET_TMPDIR")));
    }
}

impl Weather {
    /// Whether there are tables whose definitions change.
    fn changes(self) -> bool {
        matches!(self, Weather::Changing | Weather::Long)
    }
}

/// Which Postgres, and which collation its database has.
#[derive(Debug, Clone, Copy)]
struct Ground {
    version: u32,
    is_icu: bool,
}

impl Ground {
    /// The tests of one seed have all versions and collations among them.
    fn of(seed: u64, weather: Weather) -> Ground {
        let number = seed.wrapping_add(weather as u64);
        Ground { version: if number & 1 == 0 { 15 } else { 18 }, is_icu: number & 2 == 0 }
    }

    fn place(self) -> Place {
        let postgres = Postgres::builder().version(self.version).config("max_connections", "60");
        let postgres: &Postgres = Box::leak(Box::new(postgres.start().unwrap()));
        let mut place = Place::on(postgres, "");
        if self.is_icu {
            place.database += "_icu";
            let sql = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LC_COLLATE 'C' LC_CTYPE 'C'";
            postgres.execute("postgres", &format!("CREATE DATABASE {} {sql}", place.database)).unwrap();
        }
        place.sql(&tables::schema());
        place
    }
}

async fn change(weather: Weather, stage: &mut Stage<'_>, dice: &mut Dice, lasts: Duration) -> Faults {
    let begun = Instant::now();
    match weather {
        Weather::Calm | Weather::Changing => {
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
fn settings(dice: &mut Dice, weather: Weather) -> Vec<(&'static str, String)> {
    // A stream that stays open is to end when its table changes.
    let streams: &[u32] = if weather == Weather::Changing { &[1000, 60_000] } else { &[300, 1000, 5000] };
    let mut settings = vec![
        ("FOREBAY_SERVE_ALLOW_DELETE", "true".to_owned()),
        ("FOREBAY_DATABASE_POOL_SIZE", "8".to_owned()),
        ("FOREBAY_SERVE_LONG_POLL_MS", "1000".to_owned()),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "500".to_owned()),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", dice.pick(streams).to_string()),
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
fn judge(place: &Place, lives: &[Life], journal: &Journal, crashes: &[Crash], seed: u64) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let histories = Histories::read(place);
    eprintln!("{} lives, {} transactions", lives.len(), histories.transactions());
    let mut told = Instant::now();
    for (number, life) in lives.iter().enumerate() {
        if told.elapsed() > Duration::from_secs(10) {
            eprintln!("{number} lives are compared");
            told = Instant::now();
        }
        if life.wanted.table.rules.is_changing() {
            verdicts = journal_verdicts(life, &histories, journal, crashes, verdicts)
                .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            continue;
        }
        let Life { wanted, handle, sight, checkpoints, rows, had, recent, .. } = life;
        if let Some(rows) = rows {
            let now = now(place, wanted);
            let (has, should) = (listed(rows), listed(&now));
            assert!(
                *rows == now,
                "seed {seed}: {handle} isn't as it is now: {wanted:?}\n has:{has}\n should have:{should}\n  {recent}"
            );
        }
        let Some((first, last)) = checkpoints.first().zip(checkpoints.last()) else { continue };
        let is_wrong =
            |states: &States<'_>, checkpoint: &&Checkpoint| checkpoint.digest != states.at(checkpoint.seen);
        let readings = sight.readings(crashes);
        let is_right = readings.iter().any(|sight| {
            let states = histories.of(wanted).states(place, wanted, sight, first.seen..=last.seen);
            !checkpoints.iter().any(|checkpoint| is_wrong(&states, &checkpoint))
        });
        if is_right {
            continue;
        }
        let states = histories.of(wanted).states(place, wanted, sight, first.seen..=last.seen);
        let wrong = checkpoints.iter().find(|checkpoint| is_wrong(&states, checkpoint));
        let Checkpoint { seen, digest, .. } = wrong.expect("it was wrong before");
        panic!(
            "seed {seed}: {handle} was {digest:?} at {seen}, not {:?}; it should be so at {:?}\n around: {:?}\n \
             {wanted:?}\n {sight:?}, {crashes:?}\n checkpoints: {:?}\n had when it ended:{had}\n should have had at its last \
             up-to-date:{}\n  {recent}",
            states.at(*seen),
            states.find(*digest),
            states.around(*seen),
            &checkpoints[checkpoints.len().saturating_sub(5)..],
            listed(&states.last(place, wanted)),
        );
    }
    verdicts
}

/// Adds what the journal says of a life.
fn journal_verdicts(
    life: &Life,
    histories: &Histories,
    journal: &Journal,
    crashes: &[Crash],
    verdicts: Verdicts,
) -> Result<Verdicts, String> {
    let judge = |sight: &Sight| {
        let mut verdicts = verdicts;
        journal.judge(life, sight, &histories.positions, &mut verdicts).map(|()| verdicts)
    };
    let as_it_is = judge(&life.sight);
    as_it_is
        .or_else(|wrong| life.sight.readings(crashes).iter().find_map(|sight| judge(sight).ok()).ok_or(wrong))
}

fn report_changes(lives: &[Life], world: &World, verdicts: Verdicts, changed: &[Change], seconds: u64) {
    let mut kinds = BTreeMap::<_, u64>::new();
    changed.iter().for_each(|change| *kinds.entry(*change).or_default() += 1);
    eprintln!("{} lives, {} refetches, {verdicts:?}, {kinds:?}", lives.len(), world.ledger().refetches);
    for table in changing::asked() {
        let lives = lives.iter().filter(|life| life.wanted.table.name == table.name);
        let checked: usize = lives.map(|life| life.checkpoints.len()).sum();
        eprintln!("{}: {checked} states checked", table.name);
        assert!(checked > 4, "nearly nothing happened to {}", table.name);
    }
    assert!(verdicts.exact > 100 && verdicts.exact > verdicts.late + verdicts.unjudged, "{verdicts:?}");
    let is_narrowed = std::env::var_os("FOREBAY_CHANGES").is_some();
    assert!(seconds < 10 || is_narrowed || kinds.len() > 5, "nearly nothing was changed: {kinds:?}");
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
         checked, {deleted} deleted, {} refetches, {} breaks, {} refusals, {} torn streams, {} unserved, {faults:?}",
        lives.len(),
        ledger.refetches,
        ledger.breaks,
        ledger.refusals,
        ledger.torn,
        ledger.unserved,
    );
    let is_narrowed = std::env::var_os("FOREBAY_TABLES").is_some();
    // Far below what an idle machine does in ten seconds: a run in which nothing happens proves nothing.
    let enough = committed > 50
        && changes > 1000
        && (moves > 10 || is_narrowed)
        && checked > 2 * CLIENTS as u64
        && deleted > 0;
    assert!(enough, "nearly nothing happened");
    assert!(ledger.torn > 5, "no stream was cut between two up-to-dates");
    for table in tables::asked() {
        let lives = lives.iter().filter(|life| life.wanted.table.name == table.name);
        let checked: usize = lives.map(|life| life.checkpoints.len()).sum();
        let is_refused = table.rules == Rules::Loose && ledger.unserved > 0;
        eprintln!("{}: {checked} states checked", table.name);
        assert!(checked > 4 || is_refused, "nearly nothing happened to {}", table.name);
    }
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
