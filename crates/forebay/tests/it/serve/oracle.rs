//! Consistency oracle: random writes and random clients, compared with the history in Postgres.
//!
//! A run starts a Postgres, `forebay serve` and 50 clients. After the run, the oracle reads from
//! Postgres which rows each commit changed. With them it checks every state in which a client was
//! up to date.
//!
//! # What is generated
//!
//! | by | what | file |
//! |---|---|---|
//! | row writers | transactions on tables with a fixed definition | `row_writers.rs` |
//! | schema writers | rows, DDL and publication changes on other tables | `schema_writers.rs` |
//! | clients | shapes, pauses, disconnects and deletions of shapes | `oracle_client.rs` |
//! | fault injection | kills, restarts of Postgres, network faults | `faults.rs` |
//! | `settings` below | sizes and timeouts of the server | this file |
//!
//! [`OracleScenario`] lists which of them a test runs.
//!
//! # What is checked
//!
//! - At each up-to-date message, the client's rows equal the rows of the shape in Postgres after
//!   these commits: all commits before the position in the message (`global_last_seen_lsn`), and
//!   all commits that the shape's snapshot saw.
//! - Each message is consistent with the messages before it. `client_view.rs` lists the rules.
//! - A handle stays valid once its snapshot is complete, until a client deletes the shape. For some
//!   kinds of tables the server may replace a shape: see `MessageRules` in `tables.rs`.
//! - After the last commit, every client reaches the current rows. It fails if it makes no progress
//!   for [`ROWS_SETTLE_TIMEOUT`] or [`SCHEMA_SETTLE_TIMEOUT`].
//! - For tables whose definition or publication changes, `schema_journal.rs` defines which states a
//!   client may have, and for how long.
//! - Enough happened: a run with too few commits, messages or faults fails.
//!
//! # How to run it, and how to repeat a seed
//!
//! Each test prints its seed, its Postgres version and its settings. To repeat a failure, run the
//! failed test with its seed:
//!
//! ```sh
//! FOREBAY_SEED=7 cargo test -p forebay --all-features --test it -- --exact --nocapture \
//!     serve::oracle::kills_restarts_and_cuts_change_nothing_for_clients
//! ```
//!
//! The seed decides what every task does, the version of Postgres, the collation and the settings
//! of the server. It does not decide the timing, so a failure may need several attempts.
//!
//! | variable or script | effect |
//! |---|---|
//! | `FOREBAY_SEED` | the random seed; without it, a constant |
//! | `FOREBAY_SECONDS` | how long the writers run at least; 10 without it |
//! | `FOREBAY_TABLES=items,wide` | clients request only these tables |
//! | `FOREBAY_CHANGES=Rewrite,Rename` | only these variants of `SchemaChange` |
//! | `FOREBAY_SEEDS=1..=100 script/nightly` | one seed after another, until one fails |
//! | `script/soak MINUTES` | a long run that also measures memory and file descriptors |
//!
//! For a test with DDL, `FOREBAY_TABLES` must name at least one table of each kind, such as
//! `items,ledger_0`.
//!
//! # Files
//!
//! | subject | file |
//! |---|---|
//! | tables with a fixed definition | `tables.rs` |
//! | their rows, and the contents after each commit | `row_writers.rs`, `history.rs` |
//! | tables whose definition changes, and their writers | `schema_writers.rs` |
//! | their contents, and which states a client may have | `schema_journal.rs` |
//! | which shapes clients request | `oracle_request.rs` |
//! | a client: requests, retries, resuming | `oracle_client.rs`, `oracle_connection.rs` |
//! | a client: rules for messages, and its rows | `client_view.rs` |
//! | kills, restarts and network faults | `faults.rs` |
//! | memory and file descriptors over time | `soak.rs`, `plot.rs` |
//! | separate test: slow clients during compaction | `slow.rs` |
//! | separate test: commits that wait for a standby | `standby.rs` |

mod client_view;
mod faults;
mod history;
mod oracle_client;
mod oracle_connection;
mod oracle_request;
mod plot;
mod row_writers;
mod schema_journal;
mod schema_writers;
mod slow;
mod soak;
mod standby;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::TestRng;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use self::client_view::ObservedState;
use self::faults::{InjectedFaults, ServerUnderTest};
use self::history::{
    ExpectedStates, OracleSnapshot, PostgresCrash, TableHistories, current_rows, last_commit,
};
use self::oracle_client::{CatchUpTarget, HandleTrace, OracleClient, OracleContext, format_rows};
use self::row_writers::RowWriters;
use self::schema_journal::{
    JournalVerdicts, MAX_DETECTION_DELAY, MAX_DETECTION_DELAY_WITH_FAULTS, SCHEMA_SETTLE_TIMEOUT,
    SchemaJournal,
};
use self::schema_writers::{SchemaChange, SchemaWriters};
use self::soak::ProcessSamples;
use self::tables::MessageRules;
use super::support::ServeFixture;

/// Number of clients.
const CLIENTS: usize = 50;
/// Number of row writers.
const WRITERS: usize = 3;
/// Limit on shapes in a soak. Large enough that the server evicts no shape that a client uses.
const MAX_SHAPES: usize = 8 * CLIENTS;
/// How long a client may make no progress after the last commit.
const ROWS_SETTLE_TIMEOUT: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_see_what_the_table_was_between_two_commits() {
    run(OracleScenario::Rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kills_restarts_and_cuts_change_nothing_for_clients() {
    run(OracleScenario::Faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "runs for FOREBAY_SECONDS: script/soak"]
async fn a_soak_leaves_memory_and_descriptors_flat() {
    run(OracleScenario::Soak).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shapes_follow_changes_of_table_definitions_and_of_the_publication() {
    run(OracleScenario::Schema).await;
}

/// What changes and what fails in a run.
///
/// The order of the variants is fixed: [`PostgresVariant::of`] adds their number to the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OracleScenario {
    /// Rows change; nothing fails.
    Rows,
    /// Rows change, while the server, Postgres and connections fail at random.
    Faults,
    /// Table definitions and the publication change; nothing fails.
    Schema,
    /// Rows and definitions change, with faults. The server is killed only in the first third of
    /// the time, so that the memory of one process can be compared afterwards.
    Soak,
}

/// Runs a scenario, and compares all clients with the history.
async fn run(scenario: OracleScenario) {
    let has_faults = matches!(scenario, OracleScenario::Faults | OracleScenario::Soak);
    let seed = forebay_testkit::seed();
    let seconds = std::env::var("FOREBAY_SECONDS")
        .map_or(10, |text| text.parse().expect("FOREBAY_SECONDS is a number"));
    let variant = PostgresVariant::of(seed, scenario);
    eprintln!("FOREBAY_SEED={seed} FOREBAY_SECONDS={seconds}, {scenario:?}, {variant:?}");
    let fixture = variant.fixture();
    history::create_slot(&fixture);
    fixture.sql(tables::FIRST_ROWS);
    // The label is hashed with the seed. Another label would change what a seed generates.
    let mut rng = TestRng::of(seed, "stage", 0);
    let mut settings = settings(&mut rng, scenario);
    if scenario == OracleScenario::Soak {
        // Without the limit, shapes of earlier requests would stay, and each change would match
        // more and more of them.
        settings.push(("FOREBAY_STORAGE_MAX_SHAPES", MAX_SHAPES.to_string()));
    }
    eprintln!("{settings:?}");
    let is_compacting = !settings.contains(&("FOREBAY_STORAGE_COMPACT_BYTES", "0".to_owned()));
    let mut server_under_test = ServerUnderTest::start(&fixture, &settings, has_faults).await;

    // No heavy writer with tiny chunks: its rows are larger than a chunk, so clients would need one
    // request for each row and never catch up.
    let has_tiny_chunks = settings.contains(&("FOREBAY_STORAGE_CHUNK_BYTES", "2048".to_owned()));
    let is_heavy = scenario == OracleScenario::Rows && !has_tiny_chunks;
    let (has_rows, has_changes) = (scenario != OracleScenario::Schema, scenario.changes_schema());
    let writers = RowWriters::start(&fixture, seed, if has_rows { WRITERS } else { 0 }, is_heavy);
    let journal = Arc::new(SchemaJournal::new(if has_faults {
        MAX_DETECTION_DELAY_WITH_FAULTS
    } else {
        MAX_DETECTION_DELAY
    }));
    let schema_writers = has_changes.then(|| {
        block_in_place(|| SchemaWriters::start(&fixture, seed, variant.version, has_rows, &journal))
    });
    let (target, target_receiver) = watch::channel(None);
    let server = if has_faults { server_under_test.addr() } else { server_under_test.direct_addr() };
    let context =
        OracleContext::new(server, has_faults, is_compacting, variant, Arc::clone(&journal), target_receiver);
    let context = Arc::new(context);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (context, rng) = (Arc::clone(&context), TestRng::of(seed, "client", number));
        let is_changing = has_changes && (number % 3 == 0 || !has_rows);
        // The first clients request only one table each, two clients for each table. The others
        // request any table.
        let table =
            tables::requested().iter().cycle().take(2 * tables::requested().len()).nth(number).copied();
        clients.spawn(async move { OracleClient::new(&context, rng, is_changing, table).run().await });
    }
    let (samples, pid) = (ProcessSamples::default(), server_under_test.pid());
    let faults = tokio::select! {
        faults = async {
            let faults = run_scenario(scenario, &mut server_under_test, &mut rng, Duration::from_secs(seconds)).await;
            if has_rows {
                context.wait_for_enough_events(&writers).await;
            }
            faults
        } => Ok(faults),
        Some(ended) = clients.join_next() => Err(describe_client_end(ended)),
        () = samples.record(move || pid.load(Ordering::Relaxed)), if scenario == OracleScenario::Soak => unreachable!("sampling never ends"),
    };
    let faults = faults.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    let committed = writers.stop().await;
    let changed = block_in_place(|| schema_writers.map(SchemaWriters::stop).unwrap_or_default());
    block_in_place(|| fixture.sql(tables::LAST_TRANSACTION));
    let end = block_in_place(|| last_commit(&fixture));
    let max_stall = if has_rows { ROWS_SETTLE_TIMEOUT } else { SCHEMA_SETTLE_TIMEOUT };
    target.send(Some(CatchUpTarget { position: end, max_stall })).unwrap();
    let mut traces = Vec::new();
    while let Some(ended) = clients.join_next().await {
        match ended {
            Ok(Ok(finished)) => traces.extend(finished),
            ended => panic!("seed {seed}: {}", describe_client_end(ended)),
        }
    }
    let verdicts = block_in_place(|| judge(&fixture, &traces, &journal, &faults.crashes, seed));
    if has_rows {
        report(&traces, &context, &faults, committed, has_faults);
    }
    if has_changes {
        report_changes(&traces, &context, verdicts, &changed, seconds);
    }
    if scenario == OracleScenario::Soak {
        samples.check_flat(Path::new(env!("CARGO_TARGET_TMPDIR")));
    }
}

impl OracleScenario {
    /// Returns whether the scenario has tables whose definitions change.
    fn changes_schema(self) -> bool {
        matches!(self, OracleScenario::Schema | OracleScenario::Soak)
    }
}

/// Version of Postgres and collation of the database.
#[derive(Debug, Clone, Copy)]
struct PostgresVariant {
    version: u32,
    is_icu: bool,
}

impl PostgresVariant {
    /// Chooses by seed and scenario. The tests of one seed cover both versions and both collations.
    fn of(seed: u64, scenario: OracleScenario) -> PostgresVariant {
        let number = seed.wrapping_add(scenario as u64);
        PostgresVariant { version: if number & 1 == 0 { 15 } else { 18 }, is_icu: number & 2 == 0 }
    }

    /// Starts a Postgres and creates the database and its tables.
    fn fixture(self) -> ServeFixture {
        let postgres = Postgres::builder().version(self.version).config("max_connections", "60");
        let postgres: &Postgres = Box::leak(Box::new(postgres.start().unwrap()));
        let mut fixture = ServeFixture::on_postgres(postgres, "");
        if self.is_icu {
            fixture.database += "_icu";
            let sql = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LC_COLLATE 'C' LC_CTYPE 'C'";
            postgres.execute("postgres", &format!("CREATE DATABASE {} {sql}", fixture.database)).unwrap();
        }
        fixture.sql(&tables::schema());
        fixture
    }
}

/// Waits for `lasts`, and injects the faults of the scenario meanwhile.
async fn run_scenario(
    scenario: OracleScenario,
    server_under_test: &mut ServerUnderTest<'_>,
    rng: &mut TestRng,
    lasts: Duration,
) -> InjectedFaults {
    let started = Instant::now();
    match scenario {
        OracleScenario::Rows | OracleScenario::Schema => {
            sleep(lasts).await;
            InjectedFaults::default()
        }
        OracleScenario::Faults => {
            // On a busy machine, all faults could otherwise happen before any shape exists.
            server_under_test.wait_for_shapes(CLIENTS / 5).await;
            let until = Instant::now() + lasts;
            server_under_test.inject_faults(rng, until, until).await
        }
        OracleScenario::Soak => {
            server_under_test.inject_faults(rng, started + lasts / 3, started + lasts).await
        }
    }
}

/// Returns random settings of the server. Most sizes are far below the defaults, so that chunks
/// close, files are written and logs are compacted often.
fn settings(rng: &mut TestRng, scenario: OracleScenario) -> Vec<(&'static str, String)> {
    // Long streams, because a stream must end when the definition of its table changes.
    let streams: &[u32] =
        if scenario == OracleScenario::Schema { &[1000, 60_000] } else { &[300, 1000, 5000] };
    let mut settings = vec![
        ("FOREBAY_SERVE_ALLOW_DELETE", "true".to_owned()),
        ("FOREBAY_DATABASE_POOL_SIZE", "8".to_owned()),
        ("FOREBAY_SERVE_LONG_POLL_MS", "1000".to_owned()),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "500".to_owned()),
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", rng.pick(streams).to_string()),
        ("FOREBAY_DATABASE_LOCK_CHECK_MS", "500".to_owned()),
        ("FOREBAY_STORAGE_CHUNK_BYTES", rng.pick(&[2048, 8192, 65_536, 10 << 20]).to_string()),
        ("FOREBAY_STORAGE_SMALL_SNAPSHOT_BYTES", rng.pick(&[0, 8192, 262_144]).to_string()),
        ("FOREBAY_STORAGE_OPEN_FILES", rng.pick(&[1, 8, 512]).to_string()),
        ("FOREBAY_STORAGE_COMPACT_BYTES", rng.pick(&[0, 4096, 65_536]).to_string()),
    ];
    if rng.percent(70) {
        settings.push(("FOREBAY_STORAGE_UNWRITTEN_BYTES", (64 << 10).to_string()));
        settings.push(("FOREBAY_STORAGE_WAL_BYTES", (1 << 20).to_string()));
    }
    settings
}

/// Compares the rows at all up-to-dates of all clients with the history. Panics if one differs.
fn judge(
    fixture: &ServeFixture,
    traces: &[HandleTrace],
    journal: &SchemaJournal,
    crashes: &[PostgresCrash],
    seed: u64,
) -> JournalVerdicts {
    let mut verdicts = JournalVerdicts::default();
    let histories = TableHistories::read(fixture);
    eprintln!("{} client traces, {} transactions", traces.len(), histories.transactions());
    let mut reported = Instant::now();
    for (number, trace) in traces.iter().enumerate() {
        if reported.elapsed() > Duration::from_secs(10) {
            eprintln!("{number} traces compared");
            reported = Instant::now();
        }
        if trace.request.table.rules.is_changing() {
            verdicts = journal_verdicts(trace, &histories, journal, crashes, verdicts)
                .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            continue;
        }
        let HandleTrace { request, handle, snapshot, observed_states, rows, rows_text, recent, .. } = trace;
        if let Some(rows) = rows {
            let expected = current_rows(fixture, request);
            let (has, should) = (format_rows(rows), format_rows(&expected));
            assert!(
                *rows == expected,
                "seed {seed}: the final rows of {handle} are wrong: {request:?}\n rows:{has}\n expected:{should}\n  {recent}"
            );
        }
        let Some((first, last)) = observed_states.first().zip(observed_states.last()) else { continue };
        let is_wrong = |states: &ExpectedStates<'_>, observed: &&ObservedState| {
            observed.digest != states.at(observed.seen)
        };
        let interpretations = snapshot.interpretations(crashes);
        let is_right = interpretations.iter().any(|snapshot| {
            let states = histories.of(request).states(fixture, request, snapshot, first.seen..=last.seen);
            !observed_states.iter().any(|observed| is_wrong(&states, &observed))
        });
        if is_right {
            continue;
        }
        let states = histories.of(request).states(fixture, request, snapshot, first.seen..=last.seen);
        let wrong = observed_states.iter().find(|observed| is_wrong(&states, observed));
        let ObservedState { seen, digest, .. } = wrong.expect("a state was wrong above");
        panic!(
            "seed {seed}: wrong rows of {handle} at {seen}: {digest:?}, expected {:?}; positions with these rows: {:?}\n \
             commits around it: {:?}\n {request:?}\n {snapshot:?}, {crashes:?}\n last states: {:?}\n rows at the \
             end:{rows_text}\n expected at the last up-to-date:{}\n  {recent}",
            states.at(*seen),
            states.find(*digest),
            states.around(*seen),
            &observed_states[observed_states.len().saturating_sub(5)..],
            format_rows(&states.last(fixture, request)),
        );
    }
    verdicts
}

/// Judges a trace of a table whose definition changes. Returns `verdicts` with those of the trace.
fn journal_verdicts(
    trace: &HandleTrace,
    histories: &TableHistories,
    journal: &SchemaJournal,
    crashes: &[PostgresCrash],
    verdicts: JournalVerdicts,
) -> Result<JournalVerdicts, String> {
    let judge = |snapshot: &OracleSnapshot| {
        let mut verdicts = verdicts;
        journal.judge(trace, snapshot, &histories.positions, &mut verdicts).map(|()| verdicts)
    };
    judge(&trace.snapshot).or_else(|violation| {
        trace
            .snapshot
            .interpretations(crashes)
            .iter()
            .find_map(|snapshot| judge(snapshot).ok())
            .ok_or(violation)
    })
}

/// Prints a summary of schema changes, and checks that enough happened.
fn report_changes(
    traces: &[HandleTrace],
    context: &OracleContext,
    verdicts: JournalVerdicts,
    changed: &[SchemaChange],
    seconds: u64,
) {
    let mut kinds = BTreeMap::<_, u64>::new();
    changed.iter().for_each(|change| *kinds.entry(*change).or_default() += 1);
    eprintln!(
        "{} client traces, {} refetches, {verdicts:?}, {kinds:?}",
        traces.len(),
        context.records.lock().refetches
    );
    for table in schema_writers::requested() {
        let traces = traces.iter().filter(|trace| trace.request.table.name == table.name);
        let checked: usize = traces.map(|trace| trace.observed_states.len()).sum();
        eprintln!("{}: {checked} states checked", table.name);
        assert!(checked > 4, "too few states of {} were checked", table.name);
    }
    assert!(verdicts.exact > 100 && verdicts.exact > verdicts.late + verdicts.unjudged, "{verdicts:?}");
    let is_restricted = std::env::var_os("FOREBAY_CHANGES").is_some();
    assert!(seconds < 10 || is_restricted || kinds.len() > 5, "too few kinds of DDL: {kinds:?}");
}

/// Prints a summary of row changes, and checks that enough happened.
fn report(
    traces: &[HandleTrace],
    context: &OracleContext,
    faults: &InjectedFaults,
    committed: u64,
    has_faults: bool,
) {
    let sum = |count: fn(&HandleTrace) -> u64| traces.iter().map(count).sum::<u64>();
    let (changes, moves) = (sum(|trace| trace.counts.changes), sum(|trace| trace.counts.moves));
    let (up_to_dates, checked) =
        (sum(|trace| trace.counts.up_to_dates), sum(|trace| trace.observed_states.len() as u64));
    let deleted = context.deleted();
    let records = context.records.lock();
    eprintln!(
        "{committed} transactions, {} client traces, {changes} changes, {moves} changed keys, {up_to_dates} up-to-dates, \
         {checked} states checked, {deleted} deleted, {} refetches, {} broken connections, {} retries, \
         {} partial batches, {} refused shapes, {faults:?}",
        traces.len(),
        records.refetches,
        records.breaks,
        records.retries,
        records.partial_batches,
        records.refused_shapes,
    );
    let is_restricted = std::env::var_os("FOREBAY_TABLES").is_some();
    // An idle machine does far more in ten seconds. A run with fewer events proves nothing.
    let enough = committed > 50
        && changes > 1000
        && (moves > 10 || is_restricted)
        && checked > 2 * CLIENTS as u64
        && deleted > 0;
    assert!(enough, "too few events for a verdict");
    assert!(records.partial_batches > 5, "too few streams ended between two up-to-dates");
    for table in tables::requested() {
        let traces = traces.iter().filter(|trace| trace.request.table.name == table.name);
        let checked: usize = traces.map(|trace| trace.observed_states.len()).sum();
        let is_refused = table.rules == MessageRules::MovingKeys && records.refused_shapes > 0;
        eprintln!("{}: {checked} states checked", table.name);
        assert!(checked > 4 || is_refused, "too few states of {} were checked", table.name);
    }
    let of_each = faults.kills > 0 && faults.restarts > 0 && faults.cuts > 1;
    assert!(!has_faults || of_each, "a kind of fault is missing: {faults:?}");
}

/// Describes why a client task ended.
fn describe_client_end(ended: Result<Result<Vec<HandleTrace>, String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(_)) => "a client ended before the last commit".to_owned(),
        Ok(Err(violation)) => violation,
        Err(error) => error.to_string(),
    }
}
