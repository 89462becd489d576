//! Refusals of the server: each error says what happened and what to do, halts the first start, and
//! a retry succeeds after the fix.
//!
//! Out of scope: a server that is too old, since none is installed.

mod publication;

use std::path::Path;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::SimpleQueryMessage;
use forebay_replication::reservoir::{PasswordFile, PostgresConnect};
use forebay_replication::{
    ConnectionStatus, Manager, ManagerConfig, ManagerEvent, ManagerPhase, ManagerStatus, ManagerStep,
    NotReady,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};

use crate::connectivity::advance_clock;
use crate::followed_database::{FollowedDatabase, insert};

/// Waits until the manager is halted, checks its status, and returns the reason.
pub(crate) async fn halted(manager: &Manager) -> String {
    let error = within("the manager halts", manager.ready()).await.unwrap_err();
    let NotReady::Halted { why } = error else { panic!("{error:?}") };
    let status = manager.status();
    assert_eq!((status.phase, status.step), (ManagerPhase::Halted, ManagerStep::Halted));
    assert_eq!(status.connection, ConnectionStatus::Down);
    assert_eq!(status.trouble.as_ref(), Some(&why));
    assert!(status.conditions.iter().all(|condition| !condition.holds), "{status:?}");
    why
}

/// Waits until the manager is halted with a reason that contains all texts.
async fn halts(manager: &Manager, texts: &[&str]) {
    contains_all(&halted(manager).await, texts);
}

#[track_caller]
pub(crate) fn contains_all(why: &str, texts: &[&str]) {
    for text in texts {
        assert!(why.contains(text), "{text:?} isn't in: {why}");
    }
}

/// Retries, and waits until the manager is ready.
async fn retry_succeeds(manager: &Manager) {
    manager.retry().await.unwrap();
    within("the manager is ready", manager.ready()).await.unwrap();
    assert_eq!(manager.status().trouble, None);
}

/// Creates a role for this test.
fn role(followed: &FollowedDatabase<'_>, rights: &str) -> String {
    let role = format!("role_{}", followed.database);
    followed.sql(&format!(
        "CREATE ROLE {role} LOGIN {rights}; GRANT ALL ON DATABASE {} TO {role}",
        followed.database
    ));
    role
}

/// Returns a configuration that connects as a role.
fn config_as(followed: &FollowedDatabase<'_>, role: &str) -> ManagerConfig {
    followed.config_at(&followed.server.url_as(role, "", &followed.database))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_wal_level_is_reported_with_the_statement_that_changes_it() {
    let server = Postgres::builder().config("wal_level", "replica").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.start();
    halts(
        &manager,
        &["wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'", "restart the server"],
    )
    .await;
    assert_eq!(
        followed.query_value("SELECT 1 FROM pg_publication"),
        None,
        "nothing is changed before all checks"
    );
    server.set_config("wal_level", "logical").unwrap();
    server.restart_fast().unwrap();
    retry_succeeds(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_a_retry_succeeds_after_the_grant() {
    for version in [15, 18] {
        each_missing_right_is_named(&FollowedDatabase::new(Postgres::shared_version(version))).await;
    }
}

async fn each_missing_right_is_named(followed: &FollowedDatabase<'_>) {
    let (role, database) = (role(followed, ""), &followed.database);
    let manager = followed.start_with(config_as(followed, &role));
    let replicate = format!("the user {role} may not replicate");
    halts(&manager, &[&replicate, "[42501]", "ALTER ROLE … REPLICATION as a superuser", "rds_replication"])
        .await;

    followed.sql(&format!(
        "ALTER ROLE {role} REPLICATION; REVOKE ALL ON DATABASE {database} FROM PUBLIC, {role}"
    ));
    manager.retry().await.unwrap();
    halts(
        &manager,
        &["permission denied for database", "CONNECT privilege", "[42501]", "GRANT CONNECT on the database"],
    )
    .await;

    followed.sql(&format!("GRANT CONNECT ON DATABASE {database} TO {role}"));
    manager.retry().await.unwrap();
    let create = "grant CREATE on the database, or create the publication yourself (manual publication)";
    halts(&manager, &["while preparing the publication", "[42501]", create]).await;

    followed.sql(&format!("GRANT CREATE ON DATABASE {database} TO {role}"));
    retry_succeeds(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_login_is_reported_with_its_reason() {
    const SECRET: &str = "hunter2hunter2";
    let server = Postgres::builder().password("right").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let address = server.addr().to_string();
    let refused = async |user: &str, password: &str, database: &str, texts: &[&str]| {
        let manager = followed.start_with(followed.config_at(&server.url_as(user, password, database)));
        let why = halted(&manager).await;
        contains_all(&why, texts);
        contains_all(&why, &[&address]);
        assert!(!why.contains(SECRET), "{why}");
        manager.shutdown().await;
    };
    let database = followed.database.as_str();
    let password = ["password authentication failed", "[28P01]", "check the user, and its password or token"];
    refused("postgres", SECRET, database, &password).await;
    refused("unknown", SECRET, database, &password).await;
    refused(
        "postgres",
        "",
        database,
        &["asks user postgres for a password, and there is none", "password_from"],
    )
    .await;
    let missing =
        ["database \"nowhere\" does not exist", "[3D000]", "check the name of the database, or create it"];
    refused("postgres", "right", "nowhere", &missing).await;

    server
        .execute("postgres", &format!("CREATE ROLE outsider NOLOGIN REPLICATION PASSWORD '{SECRET}'"))
        .unwrap();
    let login = ["not permitted to log in", "[28000]", "check that the role exists and may log in"];
    refused("outsider", SECRET, database, &login).await;
    server.set_hba(&["host all all 127.0.0.1/32 reject"]).unwrap();
    server.reload().unwrap();
    refused(
        "postgres",
        "right",
        database,
        &["pg_hba.conf rejects", "[28000]", "what pg_hba.conf says about it"],
    )
    .await;
    server.set_hba(&["host all unknown 127.0.0.1/32 trust"]).unwrap();
    server.reload().unwrap();
    refused(
        "postgres",
        "right",
        database,
        &["no pg_hba.conf entry", "[28000]", "what pg_hba.conf says about it"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_free_slot_is_refused_until_one_is_freed() {
    let server = Postgres::builder().config("max_replication_slots", "1").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    followed.sql("SELECT pg_create_physical_replication_slot('other')");
    let manager = followed.start();
    let advice = "raise max_replication_slots, or drop unused slots";
    halts(&manager, &["while creating the slot", "all replication slots are in use", "[53400]", advice])
        .await;
    followed.sql("SELECT pg_drop_replication_slot('other')");
    retry_succeeds(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_wal_senders_is_retried() {
    let server = Postgres::builder().config("max_wal_senders", "0").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.start();
    let waits = manager.wait_until(|status| status.step == ManagerStep::BackingOff);
    let status = within("the manager waits", waits).await.unwrap();
    contains_all(&status.trouble.unwrap(), &["max_wal_senders", "[53300]", "raise the limit of the server"]);
    server.set_config("max_wal_senders", "5").unwrap();
    server.restart_fast().unwrap();
    within("it reconnects automatically", manager.ready()).await.unwrap();
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_another_kind_or_database_with_this_name_is_not_dropped() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let (slot, neighbour) = (&followed.slot, followed.server.create_database("neighbour").unwrap());
    let logical = |plugin: &str| format!("SELECT pg_create_logical_replication_slot('{slot}', '{plugin}')");
    let foreign = [
        (&neighbour, logical("pgoutput"), format!("(logical pgoutput of {neighbour})")),
        (
            &followed.database,
            logical("test_decoding"),
            format!("(logical test_decoding of {})", followed.database),
        ),
        (
            &followed.database,
            format!("SELECT pg_create_physical_replication_slot('{slot}')"),
            "(physical)".to_owned(),
        ),
    ];
    let manager = followed.start();
    within("the manager is ready", manager.ready()).await.unwrap();
    manager.shutdown_and_drop().await;
    for (database, create, what) in foreign {
        followed.server.execute(database, &create).unwrap();
        let manager = followed.start();
        let there = format!("a slot {slot} exists already, for another use");
        halts(&manager, &[&there, &what, "choose another name, or drop it"]).await;
        let query = format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'");
        assert_eq!(followed.query_value(&query).as_deref(), Some("1"), "it isn't dropped");
        followed.sql(&format!("SELECT pg_drop_replication_slot('{slot}')"));
        retry_succeeds(&manager).await;
        manager.shutdown_and_drop().await;
    }
}

/// Replaces a password file atomically, like a rotation.
fn write_password(path: &Path, password: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, password).unwrap();
    std::fs::rename(next, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_password_is_read_again() {
    let server = Postgres::builder().password("old").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let file = followed.journal().with_extension("password");
    write_password(&file, "wrong");
    let url = server.url_as("postgres", "", &followed.database);
    let connect =
        PostgresConnect::builder(&url).unwrap().password_from(PasswordFile::new(&file)).build().unwrap();
    let manager = followed.start_with(ManagerConfig::new(connect).slot(&followed.slot).pool_size(2));
    // At the first start a wrong password halts the manager.
    halts(&manager, &["password authentication failed", "[28P01]"]).await;
    write_password(&file, "old");
    retry_succeeds(&manager).await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;

    // After the first success it is retried until the file is updated.
    let mut events = manager.events();
    followed.sql("ALTER ROLE postgres PASSWORD 'new'");
    followed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'");
    let refused =
        |status: &ManagerStatus| status.trouble.as_ref().is_some_and(|trouble| trouble.contains("[28P01]"));
    let status = within("it is refused", manager.wait_until(refused)).await.unwrap();
    assert_eq!((status.step, status.phase), (ManagerStep::BackingOff, ManagerPhase::ConnectionSetup));
    followed.sql("INSERT INTO orders VALUES (2, 'meanwhile')");
    write_password(&file, "new");
    within("it reconnects automatically", manager.ready()).await.unwrap();
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    let expected =
        [insert("orders", 1, "before"), insert("orders", 2, "meanwhile"), insert("orders", 3, "after")];
    assert_eq!(followed.eventually_changes(3).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    let mut reasons = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let ManagerEvent::Restarting { reason } = event {
            reasons.push(reason);
        }
    }
    assert_eq!(reasons.first(), Some(&"server"), "the end of the backend");
    assert!(reasons.len() > 1 && reasons[1..].iter().all(|reason| *reason == "refused"), "{reasons:?}");
    manager.shutdown().await;
}

/// Waits until the manager is halted with this reason. Then fixes the cause, and advances the clock
/// by the time between two attempts.
async fn recovers_without_a_request(manager: Manager, why: &str, fix: impl FnOnce()) {
    halts(&manager, &[why]).await;
    assert_eq!(manager.status().retries, 1);
    fix();
    advance_clock(Duration::from_secs(30)).await;
    let mut status = manager.watch();
    let ready =
        within("the manager is ready", status.wait_for(ManagerStatus::is_ready)).await.unwrap().clone();
    assert_eq!((ready.trouble, ready.halted, ready.next_attempt), (None, None, None));
    manager.shutdown_and_drop().await;
}

/// Single-threaded, so that its clock can be advanced.
#[tokio::test]
async fn a_halted_manager_recovers_within_30_seconds_after_the_cause_was_fixed() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let (role, database) = (format!("late_{}", followed.database), &followed.database);
    let manager = followed.start_with(config_as(&followed, &role));
    recovers_without_a_request(manager, "does not exist [28000]", || {
        let create =
            format!("CREATE ROLE {role} LOGIN REPLICATION; GRANT ALL ON DATABASE {database} TO {role}");
        followed.sql(&create);
    })
    .await;

    followed.sql(&format!("ALTER ROLE {role} NOREPLICATION"));
    let manager = followed.start_with(config_as(&followed, &role));
    recovers_without_a_request(manager, "may not replicate", || {
        followed.sql(&format!("ALTER ROLE {role} REPLICATION"));
    })
    .await;

    let later = format!("{database}_later");
    let manager = followed.start_with(followed.config_at(&followed.server.url(&later)));
    recovers_without_a_request(manager, "does not exist [3D000]", || {
        followed.sql(&format!("CREATE DATABASE {later}"));
    })
    .await;
}

/// Single-threaded, so that its clock can be advanced.
#[tokio::test]
async fn a_halted_manager_recovers_within_30_seconds_after_the_server_or_the_password_was_fixed() {
    let server = Postgres::builder().config("wal_level", "replica").password("right").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    recovers_without_a_request(followed.start(), "wal_level is replica", || {
        server.set_config("wal_level", "logical").unwrap();
        server.restart_fast().unwrap();
    })
    .await;

    let file = followed.journal().with_extension("password");
    write_password(&file, "wrong");
    let url = server.url_as("postgres", "", &followed.database);
    let connect =
        PostgresConnect::builder(&url).unwrap().password_from(PasswordFile::new(&file)).build().unwrap();
    let config = ManagerConfig::new(connect).slot(&followed.slot).pool_size(2);
    let manager = followed.start_with(config);
    recovers_without_a_request(manager, "password authentication failed", || {
        write_password(&file, "right");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_halts_the_first_start_is_retried_after_a_success() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let role = role(&followed, "REPLICATION");
    let manager = followed.start_with(config_as(&followed, &role));
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.sql(&format!("ALTER ROLE {role} NOREPLICATION"));
    followed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'");
    let refused = |status: &ManagerStatus| {
        status.trouble.as_ref().is_some_and(|trouble| trouble.contains("may not replicate"))
    };
    let status = within("it is refused", manager.wait_until(refused)).await.unwrap();
    assert_eq!(status.step, ManagerStep::BackingOff);
    assert!(status.retries > 1 && status.retrying_since.is_some(), "{status:?}");
    let client = within("a connection for metadata", manager.admin()).await.unwrap();
    let rows = client.simple_query("SELECT 1").await.unwrap();
    assert!(rows.iter().any(|row| matches!(row, SimpleQueryMessage::Row(_))), "the pools stay open");
    drop(client);
    followed.sql(&format!("ALTER ROLE {role} REPLICATION"));
    // Without waiting for the backoff.
    retry_succeeds(&manager).await;
    assert_eq!(followed.resets(), ["first"]);
    let step = async || manager.status().retries;
    eventually("the backoff is reset", 0, step).await;
    manager.shutdown().await;
}
