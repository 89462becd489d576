//! Publications and tables with another owner, incomplete, missing, or in use.

use forebay_replication::reservoir::{Connect as _, PostgresClient, PostgresConnect};
use forebay_replication::{Manager, PublishError, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::within;

use super::{config_as, contains_all, halts, retry_succeeds, role};
use crate::followed_database::{FollowedDatabase, insert};

fn table(name: &str) -> TableName {
    TableName::new("public", name)
}

async fn add(manager: &Manager, name: &str) -> Result<u32, PublishError> {
    within("a result for the table", manager.add_table(&table(name))).await.map(|published| published.oid)
}

/// Opens another connection.
async fn connect_client(followed: &FollowedDatabase<'_>) -> PostgresClient {
    PostgresConnect::new(&followed.url()).unwrap().connect(None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_of_another_owner_is_refused() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let role = role(&followed, "REPLICATION");
    followed.sql("CREATE PUBLICATION forebay");
    let manager = followed.start_with(config_as(&followed, &role));
    let belongs = format!("the publication forebay belongs to postgres, and {role} may not change it");
    halts(&manager, &[&belongs, "ALTER PUBLICATION … OWNER TO", "(manual publication)"]).await;
    followed.sql(&format!("ALTER PUBLICATION forebay OWNER TO {role}"));
    retry_succeeds(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_owner_is_refused_with_the_statement_to_run() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let role = role(&followed, "REPLICATION");
    followed.sql("CREATE TABLE orders (id int PRIMARY KEY, note text)");
    let manager = followed.start_with(config_as(&followed, &role));
    within("the manager is ready", manager.ready()).await.unwrap();
    let wanted = [
        // ALTER PUBLICATION needs an owner of both the publication and the table.
        (
            r#"ALTER PUBLICATION "forebay" ADD TABLE ONLY "public"."orders""#,
            format!("a superuser, or a member of both postgres and {role}"),
        ),
        (r#"ALTER TABLE ONLY "public"."orders" REPLICA IDENTITY FULL"#, "postgres".to_owned()),
    ];
    for (statement, who) in wanted {
        let error = add(&manager, "orders").await.unwrap_err();
        contains_all(&error.to_string(), &["can't be changed from here", &format!("{statement}, as {who}")]);
        let PublishError::NotPermitted { statement: advised, owner, .. } = error else { panic!("{error:?}") };
        assert_eq!((advised.as_str(), owner), (statement, who));
        followed.sql(&advised);
    }
    add(&manager, "orders").await.unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_tables_and_other_relations_are_refused_by_name() {
    for version in [15, 18] {
        only_tables_are_published(&FollowedDatabase::new(Postgres::shared_version(version))).await;
    }
}

async fn only_tables_are_published(followed: &FollowedDatabase<'_>) {
    let manager = followed.running().await;
    followed.sql(
        "CREATE VIEW glance AS SELECT 1 AS id; CREATE MATERIALIZED VIEW stored AS SELECT 1 AS id; \
         CREATE SEQUENCE numbers; CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
    );
    let error = add(&manager, "nothing").await.unwrap_err();
    assert!(
        matches!(&error, PublishError::NotFound { table: found } if *found == table("nothing")),
        "{error:?}"
    );
    contains_all(&error.to_string(), &[r#"there is no table "public"."nothing""#]);
    for name in ["glance", "stored", "numbers"] {
        let error = add(&manager, name).await.unwrap_err();
        assert!(
            matches!(&error, PublishError::NotATable { table: found } if *found == table(name)),
            "{error:?}"
        );
        contains_all(&error.to_string(), &[name, "isn't a table or a partitioned table"]);
    }
    let error = add(&manager, "fleeting").await.unwrap_err();
    contains_all(&error.to_string(), &["fleeting", "unlogged tables"]);
    let catalog =
        within("a result", manager.add_table(&TableName::new("pg_catalog", "pg_class"))).await.unwrap_err();
    contains_all(&catalog.to_string(), &["pg_class", "system tables"]);
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_lacks_operations_is_repaired_and_the_consumer_reset() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
    followed.sql(
        "ALTER PUBLICATION forebay SET (publish = 'insert, delete'); INSERT INTO orders VALUES (1, 'new')",
    );
    followed.sql("UPDATE orders SET note = 'unseen'");
    let manager = followed.running().await;
    assert_eq!(followed.resets(), ["first", "slot_created"]);
    let whole = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication";
    assert_eq!(followed.query_value(whole).as_deref(), Some("t"));
    followed.sql("UPDATE orders SET note = 'seen'");
    followed.eventually_changes(1).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_publication_must_exist_and_have_all_operations() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let role = role(&followed, "REPLICATION");
    let manager = followed.start_with(config_as(&followed, &role).manual_publication());
    halts(
        &manager,
        &["there is no publication forebay, and it is managed manually", "CREATE PUBLICATION forebay"],
    )
    .await;
    followed.sql("CREATE PUBLICATION forebay WITH (publish = 'insert, delete')");
    manager.retry().await.unwrap();
    let publish = "ALTER PUBLICATION forebay SET (publish = 'insert, update, delete, truncate')";
    halts(&manager, &["the publication forebay doesn't publish update, truncate", publish, "as its owner"])
        .await;
    followed.sql(publish);
    retry_succeeds(&manager).await;
    manager.shutdown().await;
    assert_eq!(
        followed.query_value("SELECT count(*) FROM pg_publication").as_deref(),
        Some("1"),
        "it isn't dropped"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_publication_must_include_the_table_completely() {
    for version in [15, 18] {
        only_whole_tables_are_taken(&FollowedDatabase::new(Postgres::shared_version(version))).await;
    }
}

async fn only_whole_tables_are_taken(followed: &FollowedDatabase<'_>) {
    let role = role(followed, "REPLICATION");
    followed.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE columns (LIKE orders); \
         CREATE TABLE rows (LIKE orders); CREATE PUBLICATION forebay FOR TABLE columns (id), rows WHERE (id > 5)",
    );
    let manager = followed.start_with(config_as(followed, &role).manual_publication());
    within("the manager is ready", manager.ready()).await.unwrap();
    for name in ["columns", "rows"] {
        let error = add(&manager, name).await.unwrap_err();
        assert!(
            matches!(&error, PublishError::Filtered { table: found } if *found == table(name)),
            "{error:?}"
        );
        contains_all(&error.to_string(), &["a row filter or a column list", name, "publish it whole"]);
    }
    for problem in
        ["isn't in the publication", "has changes without old rows (its replica identity isn't full)"]
    {
        let error = add(&manager, "orders").await.unwrap_err();
        contains_all(&error.to_string(), &[problem, "as postgres"]);
        let PublishError::NotPermitted { statement, .. } = error else { panic!("{error:?}") };
        followed.sql(&statement);
    }
    add(&manager, "orders").await.unwrap();
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "seen")]);
    // The operator removes it from the publication.
    manager.remove_table(&table("orders")).await.unwrap();
    let query = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'orders'";
    assert_eq!(followed.query_value(query).as_deref(), Some("1"));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_publication_is_not_changed_even_by_its_owner() {
    let followed = FollowedDatabase::new(Postgres::shared());
    followed.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE other (LIKE orders); \
         ALTER TABLE orders REPLICA IDENTITY FULL; CREATE PUBLICATION forebay FOR TABLE orders",
    );
    let query = "SELECT concat((SELECT array_agg(p::text || p.xmin) FROM pg_publication p), \
        (SELECT array_agg(r::text || r.xmin) FROM pg_publication_rel r), \
        (SELECT array_agg(c.relname || c.relreplident::text ORDER BY c.relname) FROM pg_class c WHERE relname IN ('orders', 'other')))";
    let before = followed.query_value(query);
    let manager = followed.start_with(followed.config().manual_publication());
    within("the manager is ready", manager.ready()).await.unwrap();
    add(&manager, "orders").await.unwrap();
    let error = add(&manager, "other").await.unwrap_err();
    assert!(matches!(error, PublishError::NotPermitted { .. }), "{error:?}");
    manager.remove_table(&table("orders")).await.unwrap();
    manager.shutdown_and_drop().await;
    assert_eq!(followed.query_value(query), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_is_busy_and_can_be_added_later() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    followed.sql("CREATE TABLE orders (id int PRIMARY KEY, note text)");
    let holder = connect_client(&followed).await;
    let lock = "BEGIN; LOCK TABLE orders IN ROW EXCLUSIVE MODE";
    holder.batch_execute(lock).await.unwrap();
    let error = add(&manager, "orders").await.unwrap_err();
    assert!(matches!(&error, PublishError::Busy { table: found } if *found == table("orders")), "{error:?}");
    contains_all(&error.to_string(), &["orders", "in use", "try again"]);
    // It was never published without replica identity full.
    assert_eq!(followed.query_value("SELECT 1 FROM pg_publication_rel"), None);
    holder.batch_execute("ROLLBACK").await.unwrap();
    add(&manager, "orders").await.unwrap();
    holder.batch_execute("BEGIN; LOCK TABLE orders").await.unwrap();
    let error = within("a result", manager.remove_table(&table("orders"))).await.unwrap_err();
    assert!(matches!(error, PublishError::Busy { .. }), "{error:?}");
    holder.batch_execute("ROLLBACK").await.unwrap();
    manager.remove_table(&table("orders")).await.unwrap();
    assert_eq!(followed.query_value("SELECT 1 FROM pg_publication_rel"), None);
    manager.shutdown().await;
}
