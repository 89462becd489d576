//! Tables of the oracle's world, whose rows change and whose definitions don't.
//!
//! Each is of a kind that the stream of changes shows in its own way: plain, partitioned, with a
//! key that is checked late,
//! without a key, with large and generated values. Tables whose definitions change are in
//! `changing.rs`.

use std::sync::OnceLock;

/// A table, or a partition, that clients ask for.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The table whose trigger notes its rows, in `history_<family>`.
    pub(crate) family: &'static str,
    /// The tables that have its rows: itself, or its partitions.
    pub(crate) leaves: &'static [&'static str],
    pub(crate) columns: &'static [&'static str],
    /// The columns of its key: all, where it has no primary key.
    pub(crate) key: &'static [&'static str],
    /// Conditions that its shapes may have.
    pub(crate) clauses: &'static [&'static str],
    pub(crate) rules: Rules,
}

/// What a client may be told of a table's shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Each message follows from the rows before it, and a shape stays until it is deleted.
    Strict,
    /// Shapes of one partition tree depend on which others there are: a new one may end older ones.
    Tree,
    /// Rows pass through keys that others have: the client applies what comes, as the published
    /// client does, and only its rows
    /// at up-to-date count. A server may end such a shape, or refuse it by name.
    Loose,
    /// The definition changes: shapes end, or are refused for a while. Each message follows from
    /// the rows before it.
    Changing,
    /// As [`Rules::Changing`]; but what is done isn't told even with the next row, and for a while
    /// messages may be of a mixture.
    Mixed,
}

impl Rules {
    /// Whether the definition changes, and the journal judges.
    pub(crate) fn is_changing(self) -> bool {
        matches!(self, Rules::Changing | Rules::Mixed)
    }
}

/// The stored generated column of `wide`: Postgres publishes it since this version.
pub(crate) const GENERATED: (&str, u32) = ("total", 18);

const PART: [&str; 4] = ["id", "region", "version", "note"];
const PARTS: [&str; 4] = ["parts_a", "parts_b1", "parts_b2", "parts_c"];

const fn part(name: &'static str, leaves: &'static [&'static str]) -> Table {
    Table {
        name,
        family: "parts",
        leaves,
        columns: &PART,
        key: &["id", "region"],
        clauses: &["region = 'a'", "id < 60", "note LIKE 'n1%'", "region <> 'b' AND id >= 20"],
        rules: Rules::Tree,
    }
}

pub(crate) static ITEMS: Table = Table {
    name: "items",
    family: "items",
    leaves: &["items"],
    columns: &["id", "grp", "version", "amount", "label", "flag", "tags", "body"],
    key: &["id"],
    // They are made at random: `clauses.rs`.
    clauses: &[],
    rules: Rules::Strict,
};

/// Tables beside [`ITEMS`].
pub(crate) static OTHERS: [Table; 8] = [
    part("parts", &PARTS),
    part("parts_a", &["parts_a"]),
    part("parts_b", &["parts_b1", "parts_b2"]),
    part("parts_b1", &["parts_b1"]),
    part("parts_c", &["parts_c"]),
    Table {
        name: "pos",
        family: "pos",
        leaves: &["pos"],
        columns: &["id", "version", "note"],
        key: &["id"],
        clauses: &["id < 20", "id >= 10"],
        rules: Rules::Loose,
    },
    Table {
        name: "twins",
        family: "twins",
        leaves: &["twins"],
        columns: &["a", "b"],
        key: &["a", "b"],
        clauses: &["a < 4", "b = 'x'"],
        rules: Rules::Loose,
    },
    Table {
        name: "wide",
        family: "wide",
        leaves: &["wide"],
        columns: &["id", "amount", "total", "mood", "moods", "limited", "pair", "body"],
        key: &["id"],
        clauses: &["amount > 50", "mood::text = 'sad'", "id < 20"],
        rules: Rules::Strict,
    },
];

/// The tables that clients ask for.
pub(crate) fn asked() -> &'static [&'static Table] {
    static ASKED: OnceLock<Vec<&'static Table>> = OnceLock::new();
    ASKED.get_or_init(|| chosen([&ITEMS].into_iter().chain(&OTHERS)))
}

/// All, or those that `FOREBAY_TABLES` names, such as `items,wide`.
pub(crate) fn chosen(all: impl Iterator<Item = &'static Table>) -> Vec<&'static Table> {
    let names = std::env::var("FOREBAY_TABLES").ok();
    let is_named = |name| names.as_ref().is_none_or(|names| names.split(',').any(|own| own == name));
    let chosen: Vec<_> = all.filter(|table| is_named(table.name)).collect();
    assert!(!chosen.is_empty(), "FOREBAY_TABLES names no table of this test");
    chosen
}

/// A change of a row in each family, after all others: a position that the server sees, whichever
/// tables it follows.
pub(crate) const LAST: &str = "
    INSERT INTO items VALUES (900000, 0, 0); INSERT INTO parts VALUES (900000, 'a', 0, 'n1');
    INSERT INTO parts VALUES (49, 'b', 0, 'n1') ON CONFLICT (id, region) DO UPDATE SET version = -1;
    INSERT INTO parts VALUES (900000, 'c', 0, 'n1'); INSERT INTO pos VALUES (900000, 0, 'last');
    INSERT INTO twins VALUES (99, 'last'); INSERT INTO wide VALUES (900000, 1)";

pub(crate) const FAMILIES: [&str; 5] = ["items", "parts", "pos", "twins", "wide"];

pub(crate) fn columns_of(family: &str) -> &'static [&'static str] {
    let mut all = OTHERS.iter().chain([&ITEMS]);
    all.find(|table| table.family == family).expect("a family has a table").columns
}

/// Makes the tables, and for each family a trigger that notes the rows that go and those that come.
pub(crate) fn schema() -> String {
    let mut sql = TABLES.to_owned();
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

/// The first rows; noted, like all others.
pub(crate) const ROWS: &str = "
    INSERT INTO pos SELECT n, 0, 'p' || n FROM generate_series(1, 25) n;
    INSERT INTO wide SELECT n, n FROM generate_series(1, 40) n;
    INSERT INTO twins SELECT n % 5, 'x' FROM generate_series(1, 10) n";

const TABLES: &str = "
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
