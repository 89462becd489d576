//! Tables with a fixed definition, whose rows change.
//!
//! The replication stream shows each kind of table differently: plain, partitioned, with a
//! deferrable key, without a key, with large and generated values. Tables whose definitions change
//! are in `schema_writers.rs`.

use std::sync::OnceLock;

/// A table or a partition that clients request.
#[derive(Debug)]
pub(crate) struct OracleTable {
    pub(crate) name: &'static str,
    /// The root table. Its trigger records rows in `history_<family>`.
    pub(crate) family: &'static str,
    /// The tables that contain its rows: itself, or its leaf partitions.
    pub(crate) leaves: &'static [&'static str],
    pub(crate) columns: &'static [&'static str],
    /// The columns of its key. Without a primary key: all.
    pub(crate) key: &'static [&'static str],
    /// Where clauses of its shapes, of which a request picks one. Empty: generated clauses.
    pub(crate) clauses: &'static [&'static str],
    pub(crate) rules: MessageRules,
}

/// Which messages and refusals are allowed for shapes of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageRules {
    /// Each message is consistent with the rows before it. The server keeps a shape until a client
    /// deletes it.
    Strict,
    /// As [`Self::Strict`], but a new shape in the same partition tree may make the server replace
    /// older ones.
    PartitionTree,
    /// Keys move between rows. The client applies messages as the published client does, and only
    /// its rows at up-to-date are judged. The server may replace such a shape, or refuse it.
    MovingKeys,
    /// The definition changes. The server replaces shapes, or refuses them for a while. Each
    /// message is consistent with the rows before it.
    Changing,
    /// The definition changes in ways that the server doesn't detect with the next row. For a
    /// while, messages may belong to the old and to the new definition.
    Mixed,
}

impl MessageRules {
    /// Returns whether the definition changes, so that `schema_journal.rs` judges the client.
    pub(crate) fn is_changing(self) -> bool {
        matches!(self, MessageRules::Changing | MessageRules::Mixed)
    }
}

/// The stored generated column, and the first version of Postgres that publishes it.
pub(crate) const GENERATED: (&str, u32) = ("total", 18);

const PARTS_COLUMNS: [&str; 4] = ["id", "region", "version", "note"];
const PARTS_LEAVES: [&str; 4] = ["parts_a", "parts_b1", "parts_b2", "parts_c"];

/// Returns the partitioned table `parts` or one of its partitions.
const fn part(name: &'static str, leaves: &'static [&'static str]) -> OracleTable {
    OracleTable {
        name,
        family: "parts",
        leaves,
        columns: &PARTS_COLUMNS,
        key: &["id", "region"],
        clauses: &[
            "region = 'a'",
            "id < 60",
            "note LIKE 'n1%'",
            "region <> 'b' AND id >= 20",
            "note ~ '^n[1-4]'",
        ],
        rules: MessageRules::PartitionTree,
    }
}

pub(crate) static ITEMS: OracleTable = OracleTable {
    name: "items",
    family: "items",
    leaves: &["items"],
    columns: &["id", "grp", "version", "amount", "label", "flag", "tags", "body"],
    key: &["id"],
    // Clauses are random: `oracle_request.rs`.
    clauses: &[],
    rules: MessageRules::Strict,
};

/// All tables except [`ITEMS`].
pub(crate) static OTHERS: [OracleTable; 8] = [
    part("parts", &PARTS_LEAVES),
    part("parts_a", &["parts_a"]),
    part("parts_b", &["parts_b1", "parts_b2"]),
    part("parts_b1", &["parts_b1"]),
    part("parts_c", &["parts_c"]),
    OracleTable {
        name: "pos",
        family: "pos",
        leaves: &["pos"],
        columns: &["id", "version", "note"],
        key: &["id"],
        clauses: &["id < 20", "id >= 10", "id::text ~ '[13]'"],
        rules: MessageRules::MovingKeys,
    },
    OracleTable {
        name: "twins",
        family: "twins",
        leaves: &["twins"],
        columns: &["a", "b"],
        key: &["a", "b"],
        clauses: &["a < 4", "b = 'x'", "b ~ '[x-y]'"],
        rules: MessageRules::MovingKeys,
    },
    OracleTable {
        name: "wide",
        family: "wide",
        leaves: &["wide"],
        columns: &["id", "amount", "total", "mood", "moods", "limited", "pair", "body"],
        key: &["id"],
        clauses: &["amount > 50", "mood::text = 'sad'", "id < 20", "mood > 'sad'"],
        rules: MessageRules::Strict,
    },
];

/// Returns the tables that clients request.
pub(crate) fn requested() -> &'static [&'static OracleTable] {
    static REQUESTED: OnceLock<Vec<&'static OracleTable>> = OnceLock::new();
    REQUESTED.get_or_init(|| selected_by_environment([&ITEMS].into_iter().chain(&OTHERS)))
}

/// Returns all tables, or those that `FOREBAY_TABLES` names, such as `items,wide`.
pub(crate) fn selected_by_environment(
    all: impl Iterator<Item = &'static OracleTable>,
) -> Vec<&'static OracleTable> {
    let names = std::env::var("FOREBAY_TABLES").ok();
    let is_named = |name| names.as_ref().is_none_or(|names| names.split(',').any(|own| own == name));
    let selected: Vec<_> = all.filter(|table| is_named(table.name)).collect();
    assert!(!selected.is_empty(), "FOREBAY_TABLES names no table of this test");
    selected
}

/// The last transaction of a run. It changes a row in each family, so the server receives its
/// position even if it follows only some of the tables.
pub(crate) const LAST_TRANSACTION: &str = "
    INSERT INTO items VALUES (900000, 0, 0); INSERT INTO parts VALUES (900000, 'a', 0, 'n1');
    INSERT INTO parts VALUES (49, 'b', 0, 'n1') ON CONFLICT (id, region) DO UPDATE SET version = -1;
    INSERT INTO parts VALUES (900000, 'c', 0, 'n1'); INSERT INTO pos VALUES (900000, 0, 'last');
    INSERT INTO twins VALUES (99, 'last'); INSERT INTO wide VALUES (900000, 1)";

/// The root tables. Each has a history table.
pub(crate) const FAMILIES: [&str; 5] = ["items", "parts", "pos", "twins", "wide"];

/// Returns all columns of the tables of a family.
pub(crate) fn columns_of(family: &str) -> &'static [&'static str] {
    let mut all = OTHERS.iter().chain([&ITEMS]);
    all.find(|table| table.family == family).expect("every family has a table").columns
}

/// Returns the script that creates the tables, and for each family a history table with its
/// trigger.
pub(crate) fn schema() -> String {
    let mut sql = CREATE_TABLES.to_owned();
    for family in FAMILIES {
        sql += &format!(
            "CREATE TABLE history_{family} (seq bigint NOT NULL, xid bigint NOT NULL, leaf text NOT NULL,
                is_new boolean NOT NULL, LIKE {family});
             CREATE INDEX ON history_{family} (seq);
             CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {family} FOR EACH ROW EXECUTE FUNCTION note('{family}');"
        );
    }
    let histories = FAMILIES.map(|family| format!("history_{family}")).join(", ");
    sql + &format!("CREATE PUBLICATION history FOR TABLE marks, {histories}")
}

/// The first rows. The triggers record them too.
pub(crate) const FIRST_ROWS: &str = "
    INSERT INTO pos SELECT n, 0, 'p' || n FROM generate_series(1, 25) n;
    INSERT INTO wide SELECT n, n FROM generate_series(1, 40) n;
    INSERT INTO twins SELECT n % 5, 'x' FROM generate_series(1, 10) n";

const CREATE_TABLES: &str = "
    CREATE TABLE items (id int PRIMARY KEY, grp int NOT NULL, version bigint NOT NULL, amount int, label text,
        flag boolean, tags text[], body text);
    ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE parts (id int, region text, version bigint NOT NULL, note text, PRIMARY KEY (id, region))
        PARTITION BY LIST (region);
    CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
    CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b') PARTITION BY RANGE (id);
    CREATE TABLE parts_b1 PARTITION OF parts_b FOR VALUES FROM (0) TO (50);
    CREATE TABLE parts_b2 PARTITION OF parts_b DEFAULT;
    CREATE TABLE parts_c PARTITION OF parts DEFAULT;
    CREATE TABLE pos (id int PRIMARY KEY DEFERRABLE, version bigint NOT NULL, note text);
    CREATE TABLE twins (a int, b text);
    CREATE TYPE mood AS ENUM ('happy', 'sad', 'so so');
    CREATE DOMAIN limited AS mood CHECK (VALUE <> 'so so');
    CREATE TYPE pair AS (mood mood, n int);
    CREATE TABLE wide (id int PRIMARY KEY, amount int NOT NULL, total int GENERATED ALWAYS AS (amount * 2) STORED,
        mood mood, moods mood[], limited limited, pair pair, body text);
    ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE marks (id bigint PRIMARY KEY, xid bigint NOT NULL);
    CREATE SEQUENCE history_seq;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        target text := format('INSERT INTO history_%s SELECT nextval(''history_seq''), $1, $2, $3, ($4).*', TG_ARGV[0]);
        xid bigint := pg_current_xact_id()::text::bigint;
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            EXECUTE target USING xid, TG_TABLE_NAME::text, false, OLD;
        END IF;
        IF TG_OP <> 'DELETE' THEN
            EXECUTE target USING xid, TG_TABLE_NAME::text, true, NEW;
        END IF;
        RETURN NULL;
    END $$;";
