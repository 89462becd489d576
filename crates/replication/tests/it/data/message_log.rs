//! Messages with details that the journal doesn't record: column names, and options of TRUNCATE.

use std::sync::Arc;

use forebay_replication::pgoutput::{Lsn, PgOutputMessage, RelationCache, TupleValue};
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, MessageBatch, ResetReason, Timeline,
};
use forebay_testkit::{eventually, within};
use parking_lot::Mutex;

use super::both_versions;
use crate::followed_database::FollowedDatabase;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_lists_its_tracked_tables_and_options() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let (manager, log) = MessageLog::follow(&followed).await;
        followed.sql(
            "CREATE TABLE a (id serial PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY REFERENCES a); \
             CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE unseen (id int REFERENCES a)",
        );
        for table in ["a", "b", "c"] {
            followed.add(&manager, "public", table).await;
        }
        followed.sql("TRUNCATE c");
        followed.sql("TRUNCATE c RESTART IDENTITY");
        followed.sql("TRUNCATE b, c");
        followed.sql("TRUNCATE a CASCADE");
        followed.sql("TRUNCATE a, c RESTART IDENTITY CASCADE");
        followed.sql("TRUNCATE unseen");
        followed.sql("INSERT INTO c VALUES (1)");
        let expected = [
            "truncate c",
            "truncate c, restart identity",
            "truncate b c",
            "truncate a b, cascade",
            "truncate a b c, cascade, restart identity",
            "insert c 1",
        ];
        assert_eq!(log.until("insert c 1").await, expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_altered_table_is_described_again_before_its_next_change() {
    for server in both_versions() {
        let followed = FollowedDatabase::new(server);
        let (manager, log) = MessageLog::follow(&followed).await;
        log.describe();
        followed.table(&manager, "t").await;
        followed.sql("INSERT INTO t VALUES (1, 'a')");
        followed.sql("ALTER TABLE t ADD COLUMN price int DEFAULT 7");
        followed.sql("INSERT INTO t VALUES (2, 'b', 8)");
        followed.sql("ALTER TABLE t RENAME COLUMN price TO cost");
        followed.sql("INSERT INTO t VALUES (3, 'c', 9)");
        // The rewrite of the table is no change.
        followed.sql("ALTER TABLE t ALTER COLUMN cost TYPE numeric(10, 2)");
        followed.sql("INSERT INTO t VALUES (4, 'd', 9.5)");
        followed.sql("ALTER TABLE t DROP COLUMN note");
        followed.sql("INSERT INTO t VALUES (5, 1)");
        followed.sql("BEGIN; INSERT INTO t VALUES (6, 1); ALTER TABLE t ADD COLUMN late text; INSERT INTO t VALUES (7, 1, 'e'); COMMIT");
        followed.sql(
            "BEGIN; ALTER TABLE t ADD COLUMN never text; INSERT INTO t VALUES (8, 1, 'f', 'g'); ROLLBACK",
        );
        followed.sql("ALTER TABLE t RENAME TO u");
        followed.sql("INSERT INTO u VALUES (9, 1, 'h')");
        let expected = [
            "relation t id:int4* note:text*",
            "insert t 1 a",
            "relation t id:int4* note:text* price:int4*",
            "insert t 2 b 8",
            "relation t id:int4* note:text* cost:int4*",
            "insert t 3 c 9",
            "relation t id:int4* note:text* cost:numeric*",
            "insert t 4 d 9.50",
            "relation t id:int4* cost:numeric*",
            "insert t 5 1.00",
            "insert t 6 1.00",
            "relation t id:int4* cost:numeric* late:text*",
            "insert t 7 1.00 e",
            "relation u id:int4* cost:numeric* late:text*",
            "insert u 9 1.00 h",
        ];
        assert_eq!(log.until("insert u 9 1.00 h").await, expected);
        manager.shutdown().await;
    }
}

/// A consumer that logs messages as short texts, in memory.
#[derive(Clone, Default)]
struct MessageLog(Arc<Mutex<LoggedMessages>>);

/// The texts, and the state to format them.
#[derive(Default)]
struct LoggedMessages {
    lines: Vec<String>,
    relations: RelationCache,
    describes: bool,
    durable: Option<DurablePosition>,
}

impl MessageLog {
    async fn follow(followed: &FollowedDatabase<'_>) -> (Manager, MessageLog) {
        let log = MessageLog::default();
        let manager = Manager::start(followed.config(), log.clone()).unwrap();
        within("the manager is ready", manager.ready()).await.unwrap();
        (manager, log)
    }

    /// Logs `Relation` messages, too.
    fn describe(&self) {
        self.0.lock().describes = true;
    }

    async fn until(&self, last: &str) -> Vec<String> {
        let arrived = async || self.0.lock().lines.last().is_some_and(|line| line == last);
        eventually(last, true, arrived).await;
        self.0.lock().lines.clone()
    }
}

impl LoggedMessages {
    fn name(&self, oid: u32) -> String {
        self.relations.get(oid).expect("a relation comes before its changes").name.clone()
    }

    fn take(&mut self, message: &PgOutputMessage<'_>) {
        let line = match message {
            PgOutputMessage::Relation(relation) => {
                // The server repeats some descriptions without a change.
                if !self.relations.apply(relation) || !self.describes {
                    return;
                }
                let columns = relation.columns.iter().map(|column| {
                    let kind = match column.type_oid {
                        23 => "int4",
                        25 => "text",
                        1700 => "numeric",
                        _ => "another",
                    };
                    format!(" {}:{kind}{}", column.name, if column.is_key { "*" } else { "" })
                });
                format!("relation {}{}", relation.name, columns.collect::<String>())
            }
            PgOutputMessage::Insert(insert) => {
                let text = |value: TupleValue<'_>| {
                    String::from_utf8(value.bytes().unwrap_or(b"-").to_vec()).unwrap()
                };
                let row: Vec<_> = insert.new.iter().map(text).collect();
                format!("insert {} {}", self.name(insert.relation), row.join(" "))
            }
            PgOutputMessage::Truncate(truncate) => {
                let mut tables: Vec<_> = truncate.relations.iter().map(|oid| self.name(oid)).collect();
                tables.sort();
                let cascade = if truncate.cascade { ", cascade" } else { "" };
                let restart = if truncate.restart_identity { ", restart identity" } else { "" };
                format!("truncate {}{cascade}{restart}", tables.join(" "))
            }
            PgOutputMessage::Commit(commit) => {
                return self.durable.as_ref().expect("a stream has begun").advance(commit.end_lsn);
            }
            _ => return,
        };
        self.lines.push(line);
    }
}

impl Consumer for MessageLog {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(None)
    }

    async fn reset(&mut self, _: ResetReason, _: Bookmark) -> Result<(), ConsumerError> {
        Ok(())
    }

    async fn record_timeline(&mut self, _: Timeline) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn start(&mut self, durable: DurablePosition) {
        self.0.lock().durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        let mut logged = self.0.lock();
        while let Some(message) = batch.next() {
            logged.take(&message);
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.0.lock().durable.as_ref().expect("a stream has begun").advance(lsn);
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}
