//! The publication and its tables, changed by the manager and by other clients.

use forebay_replication::{Manager, ManagerEvent, PublishError, TableChange, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::within;
use futures_util::future::join_all;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::followed_database::{FollowedDatabase, insert, row, streams, table_event};
use crate::journal::{JournalChange, OldRow};
use crate::other_client::connect_client;

/// Reconciles, and returns the table events.
async fn reconciled(manager: &Manager, events: &mut Receiver<ManagerEvent>) -> Vec<(String, TableChange)> {
    within("the reconciliation", manager.reconcile()).await.unwrap();
    table_events(events)
}

/// Returns the table events so far.
fn table_events(events: &mut Receiver<ManagerEvent>) -> Vec<(String, TableChange)> {
    let mut changes = Vec::new();
    loop {
        match events.try_recv() {
            Ok(ManagerEvent::Table { table, change }) => changes.push((table.name, change)),
            Ok(_) => {}
            Err(TryRecvError::Empty) => return changes,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn add(manager: &Manager, table: &TableName) -> u32 {
    within("the table is added", manager.add_table(table)).await.unwrap().oid
}

/// Returns the tables of the publication, by name.
fn published(followed: &FollowedDatabase<'_>) -> Vec<String> {
    let query = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'forebay' ORDER BY 1";
    followed.server.query(&followed.database, query).unwrap().into_iter().flatten().flatten().collect()
}

fn oid(followed: &FollowedDatabase<'_>) -> Option<String> {
    followed.query_value("SELECT oid FROM pg_publication WHERE pubname = 'forebay'")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_dropped_while_streaming_is_recreated_with_its_tables() {
    for version in [15, 18] {
        let followed = FollowedDatabase::new(Postgres::shared_version(version));
        let manager = followed.running().await;
        followed.table(&manager, "orders").await;
        let (mut events, before) = (manager.events(), oid(&followed));
        followed.sql("DROP PUBLICATION forebay");
        match version {
            // The server ends the stream at the next change.
            15 => followed.sql("INSERT INTO orders VALUES (1, 'lost')"),
            // The server continues without an error.
            _ => within("it is noticed", manager.reconcile()).await.unwrap(),
        }
        followed.was_reset(&manager, &["first", "slot_created"]).await;
        assert!(oid(&followed).is_some() && oid(&followed) != before);
        table_event(&mut events, "orders", TableChange::Gap).await;
        followed.sql("INSERT INTO orders VALUES (2, 'after')");
        assert_eq!(followed.eventually_changes(1).await, [insert("orders", 2, "after")]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_publication_resets_the_consumer() {
    for version in [15, 18] {
        let followed = FollowedDatabase::new(Postgres::shared_version(version));
        let manager = followed.running().await;
        followed.table(&manager, "orders").await;
        let mut events = manager.events();
        followed.sql("DROP PUBLICATION forebay; CREATE PUBLICATION forebay");
        let replaced = oid(&followed);
        within("it is noticed", manager.reconcile()).await.unwrap();
        followed.was_reset(&manager, &["first", "slot_created"]).await;
        assert_eq!(oid(&followed), replaced);
        table_event(&mut events, "orders", TableChange::Gap).await;
        followed.sql("INSERT INTO orders VALUES (1, 'after')");
        followed.eventually_changes(1).await;
        manager.shutdown().await;

        // While no manager runs, with the same options, and with a change that neither includes.
        let generated = if version < 18 { "" } else { ", publish_generated_columns = stored" };
        let with = format!(" WITH (publish_via_partition_root = true{generated})");
        followed.sql("DROP PUBLICATION forebay");
        followed.sql("INSERT INTO orders VALUES (2, 'lost')");
        followed.sql(&format!("CREATE PUBLICATION forebay FOR TABLE orders{with}"));
        let manager = followed.running().await;
        let mut reasons = vec!["first", "slot_created", "publication_changed"];
        if version == 15 {
            // The server can't decode the change.
            reasons.push("slot_created");
        }
        followed.was_reset(&manager, &reasons).await;
        followed.sql("INSERT INTO orders VALUES (3, 'after that')");
        let expected = [insert("orders", 1, "after"), insert("orders", 3, "after that")];
        assert_eq!(followed.eventually_changes(2).await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrowed_publication_is_repaired_and_resets_the_consumer() {
    for (version, narrowed) in [(15, "publish = 'insert'"), (18, "publish_generated_columns = none")] {
        let followed = FollowedDatabase::new(Postgres::shared_version(version));
        let manager = followed.running().await;
        followed
            .sql("CREATE TABLE orders (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)");
        add(&manager, &TableName::new("public", "orders")).await;
        followed.sql(&format!("ALTER PUBLICATION forebay SET ({narrowed})"));
        within("it is noticed", manager.reconcile()).await.unwrap();
        followed.was_reset(&manager, &["first", "slot_created"]).await;
        followed.sql("INSERT INTO orders VALUES (1)");
        followed.sql("DELETE FROM orders");
        let columns = ["1", "2"].iter().take(if version < 18 { 1 } else { 2 });
        let columns: Vec<_> = columns.map(|column| Some((*column).to_owned())).collect();
        let inserted = JournalChange::Insert("public.orders".into(), columns.clone());
        let deleted = JournalChange::Delete("public.orders".into(), OldRow::Full(columns));
        assert_eq!(followed.eventually_changes(2).await, [inserted, deleted]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_removed_or_without_full_identity_is_repaired_and_reported() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    for table in ["items", "notes", "orders"] {
        followed.table(&manager, table).await;
    }
    assert_eq!(reconciled(&manager, &mut events).await, []);
    followed.sql("ALTER PUBLICATION forebay DROP TABLE items");
    followed.sql("ALTER TABLE notes REPLICA IDENTITY DEFAULT");
    let gaps = [("items".to_owned(), TableChange::Gap), ("notes".to_owned(), TableChange::Gap)];
    assert_eq!(reconciled(&manager, &mut events).await, gaps);
    assert_eq!(published(&followed), ["items", "notes", "orders"]);
    assert_eq!(reconciled(&manager, &mut events).await, [], "reported once");
    followed
        .sql("INSERT INTO items VALUES (1, 'back'); INSERT INTO notes VALUES (1, 'back'); DELETE FROM notes");
    let deleted = JournalChange::Delete("public.notes".into(), OldRow::Full(row(1, "back")));
    let expected = [insert("items", 1, "back"), insert("notes", 1, "back"), deleted];
    assert_eq!(followed.eventually_changes(3).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_dropped_or_replaced_table_is_reported_as_gone() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    for table in ["dropped", "kept", "renamed", "replaced"] {
        followed.table(&manager, table).await;
    }
    followed.sql("DROP TABLE dropped; ALTER TABLE renamed RENAME TO other");
    followed.sql("DROP TABLE replaced; CREATE TABLE replaced (id int PRIMARY KEY, note text)");
    let gone = ["dropped", "renamed", "replaced"].map(|table| (table.to_owned(), TableChange::Gone));
    assert_eq!(reconciled(&manager, &mut events).await, gone);
    assert_eq!(reconciled(&manager, &mut events).await, [], "reported once");
    // The new table must be added.
    add(&manager, &TableName::new("public", "replaced")).await;
    followed.sql("INSERT INTO replaced VALUES (1, 'new'); INSERT INTO kept VALUES (1, 'old')");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("replaced", 1, "new"), insert("kept", 1, "old")]
    );
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_a_changed_table_again_reports_the_change() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    let (orders, notes) = (TableName::new("public", "orders"), TableName::new("public", "notes"));
    followed.table(&manager, "orders").await;
    followed.table(&manager, "notes").await;
    let before = add(&manager, &orders).await;
    assert_eq!(before, add(&manager, &orders).await, "twice is fine");
    assert_eq!(reconciled(&manager, &mut events).await, []);
    followed.sql("ALTER PUBLICATION forebay DROP TABLE notes");
    followed.sql("DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY, note text)");
    add(&manager, &notes).await;
    assert_ne!(add(&manager, &orders).await, before);
    let expected = [("notes".to_owned(), TableChange::Gap), ("orders".to_owned(), TableChange::Gone)];
    assert_eq!(reconciled(&manager, &mut events).await, expected);
    assert_eq!(published(&followed), ["notes", "orders"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_is_repaired_later_without_delaying_others() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    for table in ["apples", "busy", "zebras"] {
        followed.table(&manager, table).await;
    }
    followed.sql("ALTER PUBLICATION forebay DROP TABLE apples, zebras");
    followed.sql("ALTER TABLE busy REPLICA IDENTITY DEFAULT");
    // A reader blocks the change, too.
    let reader = connect_client(&followed, &followed.database).await;
    reader.batch_execute("BEGIN; SELECT FROM busy").await.unwrap();
    let busy = within("the reconciliation", manager.reconcile()).await;
    assert!(matches!(&busy, Err(PublishError::Busy { table }) if table.name == "busy"), "{busy:?}");
    assert_eq!(
        table_events(&mut events),
        ["apples", "zebras"].map(|table| (table.to_owned(), TableChange::Gap))
    );
    assert_eq!(published(&followed), ["apples", "busy", "zebras"]);
    reader.batch_execute("COMMIT").await.unwrap();
    assert_eq!(reconciled(&manager, &mut events).await, [("busy".to_owned(), TableChange::Gap)]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_partition_gets_replica_identity_full() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    followed.sql("CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)");
    followed.sql("CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (10)");
    add(&manager, &TableName::new("public", "orders")).await;
    followed.sql("CREATE TABLE many PARTITION OF orders FOR VALUES FROM (10) TO (100)");
    assert_eq!(reconciled(&manager, &mut events).await, [("orders".to_owned(), TableChange::Gap)]);
    followed.sql("INSERT INTO orders VALUES (1, 'few'), (11, 'many'); DELETE FROM orders WHERE id = 11");
    let deleted = JournalChange::Delete("public.orders".into(), OldRow::Full(row(11, "many")));
    let expected = [insert("orders", 1, "few"), insert("orders", 11, "many"), deleted];
    assert_eq!(followed.eventually_changes(3).await, expected);
    manager.shutdown().await;
}

const PARTITIONED: &str = "CREATE TABLE orders (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); \
     CREATE TABLE few PARTITION OF orders FOR VALUES FROM (0) TO (10); \
     CREATE TABLE many PARTITION OF orders FOR VALUES FROM (10) TO (100)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_published_under_its_own_name_on_request() {
    for version in [15, 18] {
        let followed = FollowedDatabase::new(Postgres::shared_version(version));
        let manager = followed.running().await;
        followed.sql(PARTITIONED);
        let (orders, few) = (TableName::new("public", "orders"), TableName::new("public", "few"));
        add(&manager, &orders).await;
        let error = within("a result", manager.add_table(&few)).await.unwrap_err();
        assert!(matches!(&error, PublishError::PublishedViaRoot { table } if *table == few), "{error:?}");
        let version =
            || followed.query_value("SELECT xmin FROM pg_publication WHERE pubname = 'forebay'").unwrap();
        let before = version();
        let changed = within("it is changed", manager.publish_partitions(&few)).await.unwrap().unwrap();
        assert_eq!((changed.before.to_string(), changed.after.to_string()), (before, version()));
        assert_eq!(within("no change", manager.publish_partitions(&few)).await.unwrap(), None);
        add(&manager, &few).await;
        add(&manager, &orders).await;
        followed.sql("INSERT INTO orders VALUES (1, 'few'), (11, 'many')");
        let expected = [insert("few", 1, "few"), insert("many", 11, "many")];
        assert_eq!(followed.eventually_changes(2).await, expected);
        // The root is removed, its partition stays.
        within("it is removed", manager.remove_table(&orders)).await.unwrap();
        followed.sql("INSERT INTO orders VALUES (2, 'few'), (12, 'many')");
        followed.sql("INSERT INTO orders VALUES (3, 'few')");
        assert_eq!(
            followed.eventually_changes(4).await[2..],
            [insert("few", 2, "few"), insert("few", 3, "few")]
        );
        manager.shutdown().await;
        // The next start doesn't change the publication.
        let manager = followed.running().await;
        assert_eq!(within("no change", manager.publish_partitions(&few)).await.unwrap(), None);
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_be_repaired_does_not_block_others() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    followed.sql(PARTITIONED);
    let few = TableName::new("public", "few");
    within("it is changed", manager.publish_partitions(&few)).await.unwrap().unwrap();
    for table in ["few", "orders"] {
        add(&manager, &TableName::new("public", table)).await;
    }
    followed.table(&manager, "zebras").await;
    followed.sql("ALTER PUBLICATION forebay SET (publish_via_partition_root = true)");
    followed.sql("ALTER PUBLICATION forebay DROP TABLE zebras");
    let expected = [("few".to_owned(), TableChange::Unpublished), ("zebras".to_owned(), TableChange::Gap)];
    assert_eq!(reconciled(&manager, &mut events).await, expected);
    assert_eq!(reconciled(&manager, &mut events).await, expected[..1], "until it is repaired");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_one_table_does_not_block_others() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    for table in ["apples", "zebras"] {
        followed.table(&manager, table).await;
    }
    // The server refuses changes of one table.
    followed.sql(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%apples%') \
         THEN RAISE 'not this one'; END IF; END $$; \
         CREATE EVENT TRIGGER refusing ON ddl_command_end EXECUTE FUNCTION refuse()",
    );
    followed.sql("ALTER PUBLICATION forebay DROP TABLE apples, zebras");
    let error = within("the reconciliation", manager.reconcile()).await.unwrap_err();
    assert!(error.to_string().contains("not this one"), "{error}");
    assert_eq!(table_events(&mut events), [("zebras".to_owned(), TableChange::Gap)]);
    followed.sql("DROP EVENT TRIGGER refusing");
    assert_eq!(reconciled(&manager, &mut events).await, [("apples".to_owned(), TableChange::Gap)]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_a_missing_table_succeeds() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    followed.sql("CREATE TABLE never_added ()");
    for (schema, name) in [("public", "never_added"), ("public", "nowhere"), ("no such schema", "nowhere")] {
        within("it is removed", manager.remove_table(&TableName::new(schema, name))).await.unwrap();
    }
    let orders = TableName::new("public", "orders");
    for _ in 0..2 {
        within("it is removed", manager.remove_table(&orders)).await.unwrap();
    }
    assert_eq!(published(&followed), [""; 0]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_can_be_added_and_removed_concurrently() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let tables: Vec<_> = (0..20).map(|n| TableName::new("public", format!("table_{n:02}"))).collect();
    for table in &tables {
        followed.sql(&format!("CREATE TABLE {table} (id int PRIMARY KEY, note text)"));
    }
    let added = within("all are added", join_all(tables.iter().map(|table| manager.add_table(table)))).await;
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    assert_eq!(published(&followed).len(), 20);
    for table in &tables {
        followed.sql(&format!("INSERT INTO {table} VALUES (1, 'new')"));
    }
    let expected: Vec<_> = tables.iter().map(|table| insert(&table.name, 1, "new")).collect();
    assert_eq!(followed.eventually_changes(20).await, expected);
    let mixed = tables.iter().enumerate().map(async |(n, table)| match n % 2 {
        0 => manager.add_table(table).await.map(drop),
        _ => manager.remove_table(table).await,
    });
    let mixed = within("all are done", join_all(mixed)).await;
    assert!(mixed.iter().all(Result::is_ok), "{mixed:?}");
    assert_eq!(published(&followed).len(), 10);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_table_schema_and_publication_name_is_supported() {
    const NAMES: [&str; 6] =
        ["Orders", "my orders", "say \"hi\"", "it's; DROP TABLE orders", "bestellungen_äöü_订单", "1"];
    let followed = FollowedDatabase::new(Postgres::shared());
    let publication = "Our \"own\", it's\\ 订单";
    let manager = followed.start_with(followed.config().publication(publication));
    streams(&manager).await;
    let schema = "Some \"schema\".with 'all'";
    let tables = NAMES.map(|name| TableName::new(schema, name));
    followed.sql(&format!("CREATE SCHEMA \"{}\"", schema.replace('"', "\"\"")));
    for table in &tables {
        followed.sql(&format!("CREATE TABLE {table} (id int PRIMARY KEY, note text)"));
        add(&manager, table).await;
        followed.sql(&format!("INSERT INTO {table} VALUES (1, 'new')"));
    }
    let expected = NAMES.map(|name| JournalChange::Insert(format!("{schema}.{name}"), row(1, "new")));
    assert_eq!(followed.eventually_changes(NAMES.len()).await, expected);
    within("the reconciliation", manager.reconcile()).await.unwrap();
    for table in &tables {
        within("it is removed", manager.remove_table(table)).await.unwrap();
    }
    assert_eq!(followed.query_value("SELECT count(*) FROM pg_publication_rel").as_deref(), Some("0"));
    manager.shutdown_and_drop().await;
    assert_eq!(followed.query_value("SELECT count(*) FROM pg_publication").as_deref(), Some("0"));
}
