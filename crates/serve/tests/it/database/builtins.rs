//! Tests of the functions, operators and types that clauses may use.

use forebay_serve::database::{Builtins, DisallowedBuiltin};
use forebay_shapes::filter::{Collation, Column, Expression, Schema};

use super::Database;

/// Allowed calls, separated by semicolons.
const ALLOWED_CALLS: &str = "lower(a); length(a); substring(a, 1); concat(a, a, a); extract(year FROM a::date); \
    date_trunc('day', a::timestamptz); jsonb_extract_path_text(a::jsonb, 'x', 'y'); abs(1); regexp_like(a, 'x'); \
    array_length(a::text[], 1); cardinality(a::int[]); md5(a); round(1.5, 1); like_escape(a, a); btrim(a); \
    position(a IN a); lower(a::int4range); starts_with(a, 'x'); timezone('UTC', a::timestamptz); \
    npoints(a::polygon); host(a::inet); int4range(1, 2); to_char(1.5, '9'); num_nulls(a, a)";

/// Names separated by spaces.
const REFUSED_FUNCTIONS: &str = "now clock_timestamp random gen_random_uuid version current_setting set_config pg_sleep \
    pg_sleep_for pg_read_file pg_read_binary_file pg_ls_dir pg_stat_file lo_import lo_export lo_get lo_put nextval setval \
    currval query_to_xml table_to_xml cursor_to_xml database_to_xml schema_to_xml generate_series unnest jsonb_each \
    regexp_matches count max string_agg rank row_number to_regclass regclass has_table_privilege pg_get_viewdef \
    pg_relation_size obj_description col_description format_type txid_current pg_backend_pid inet_client_addr \
    pg_terminate_backend pg_cancel_backend pg_reload_conf pg_advisory_lock pg_notify pg_typeof dblink \
    satisfies_hash_partition pg_partition_root postgresql_fdw_validator acldefault makeaclitem xpath xmlexists enum_in \
    array_in int4in record_eq to_tsvector repeat lpad rpad array_fill replace concat_ws polygon path \
    ts_rewrite tsquery_phrase jsonb_path_query_array jsonb_path_query_first jsonb_path_exists jsonb_path_match regexp_match \
    regexp_split_to_array normalize jsonb_set jsonb_insert hashtext texteq int4pl no_such";

/// Names separated by spaces.
const REFUSED_TYPES: &str = "regclass regtype regrole regproc regnamespace regconfig aclitem xml pg_node_tree own pg_class \
    record cstring internal unknown anyelement no_such _text";

async fn load(database: &Database) -> Builtins {
    let client = database.client().await;
    Builtins::load(&client).await.unwrap()
}

fn expression(clause: &str) -> Expression {
    let schema = Schema {
        table: Some("t".to_owned()),
        columns: vec![Column::new("a", 25, "text")],
        database_collation: Collation::C,
        server_version: 15,
    };
    Expression::parse(clause, &[], &schema, &[]).unwrap_or_else(|error| panic!("{clause}: {error}"))
}

#[tokio::test]
async fn only_functions_that_read_nothing_but_their_arguments_are_allowed() {
    for version in [15, 18] {
        let database = Database::new(version, "SELECT 1");
        let builtins = load(&database).await;
        let allows = |clause: &str| builtins.check(&expression(clause));
        for call in ALLOWED_CALLS.split("; ") {
            assert_eq!(allows(&format!("{call} IS NULL")), Ok(()), "{version}: {call}");
        }
        for name in REFUSED_FUNCTIONS.split_whitespace() {
            for arguments in 0..5 {
                let call = format!("\"{name}\"({}) IS NULL", vec!["a"; arguments].join(", "));
                let refused = DisallowedBuiltin::Function { name: name.to_owned(), arguments };
                assert_eq!(allows(&call), Err(refused), "{version}: {call}");
            }
        }
    }
}

#[tokio::test]
async fn only_types_whose_input_function_does_not_read_the_catalog_are_allowed() {
    for version in [15, 18] {
        let database = Database::new(version, "CREATE TYPE own AS (a int)");
        let builtins = load(&database).await;
        let allows = |clause: String| builtins.check(&expression(&clause));
        for name in
            ["text", "int", "numeric(10, 2)", "jsonb", "uuid[]", "timestamptz", "date", "tstzrange", "inet"]
        {
            assert_eq!(allows(format!("a::{name} IS NULL")), Ok(()), "{version}: {name}");
        }
        for name in REFUSED_TYPES.split_whitespace() {
            let refused = DisallowedBuiltin::Type(name.to_owned());
            assert_eq!(allows(format!("a::{name} IS NULL")), Err(refused.clone()), "{version}: {name}");
            assert_eq!(allows(format!("a::{name}[] IS NULL")), Err(refused), "{version}: {name}[]");
        }
        for clause in
            ["a ~ a", "a::jsonb ?| '{a}'", "a::jsonb @> '{}'", "a::jsonb -> 'x' IS NULL", "1 << 2 = 4"]
        {
            assert_eq!(allows(clause.to_owned()), Ok(()), "{version}: {clause}");
        }
        for name in ["<~~>", "@@", "@?"] {
            assert_eq!(allows(format!("a {name} a")), Err(DisallowedBuiltin::Operator(name.to_owned())));
        }
        for clause in ["a::timestamptz > a::date", "a::interval + a::timestamptz IS NULL", "a || 1 = ''"] {
            assert_eq!(allows(clause.to_owned()), Ok(()), "{version}: {clause}");
        }
    }
}

#[tokio::test]
async fn a_name_with_an_added_function_in_pg_catalog_is_not_allowed() {
    let database = Database::new(
        15,
        "SET allow_system_table_mods = on;
         CREATE FUNCTION pg_catalog.md5(int) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT NULL::text';
         CREATE OPERATOR pg_catalog.~ (leftarg = text, rightarg = int, function = pg_catalog.repeat)",
    );
    let builtins = load(&database).await;
    assert!(builtins.check(&expression("md5(a) = ''")).is_err());
    assert!(builtins.check(&expression("a ~ ''")).is_err());
    assert!(builtins.check(&expression("lower(a) = ''")).is_ok());
}

#[tokio::test]
async fn a_cast_function_of_the_database_between_builtin_types_leaves_nothing_allowed() {
    let database = Database::new(
        15,
        "CREATE TYPE own AS (a int);
         CREATE FUNCTION own(text) RETURNS own LANGUAGE sql IMMUTABLE AS 'SELECT NULL::own';
         CREATE CAST (text AS own) WITH FUNCTION own(text) AS IMPLICIT;
         CREATE CAST (int4 AS date) WITHOUT FUNCTION",
    );
    let clause = expression("lower(a) = ''");
    assert_eq!(load(&database).await.check(&clause), Ok(()), "no clause can call these casts");
    database.run(
        "CREATE FUNCTION own(int4) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT NULL::text';
         CREATE CAST (int4 AS text) WITH FUNCTION own(int4) AS IMPLICIT",
    );
    let refused = Err(DisallowedBuiltin::Cast("integer to text".to_owned()));
    assert_eq!(load(&database).await.check(&clause), refused);
}
