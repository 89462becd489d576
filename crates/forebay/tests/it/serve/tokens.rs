//! Shape tokens: a bearer reads what the token grants, until it expires, and nothing else, however it asks.

mod changes;
mod holding;

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use super::support::{Place, Serve, changes as rows_of, path};
use crate::wire::{HttpConnection, HttpResponse};

const KEY: &str = "a key of the test, of more than thirty-two bytes";
const FAR: u64 = 4_000_000_000;
const SQL: &str = "CREATE TABLE orders (id int PRIMARY KEY, user_id int, total int, note text);
    INSERT INTO orders VALUES (1, 7, 10, 'mine'), (2, 8, 20, 'theirs'), (3, 7, 30, 'mine too'), (4, NULL, 40, 'nobody''s');
    CREATE TABLE secrets (id int PRIMARY KEY, note text);
    INSERT INTO secrets VALUES (1, 'hidden');
    CREATE TABLE bare (id int, note text); ALTER TABLE bare REPLICA IDENTITY FULL;
    INSERT INTO bare VALUES (1, 'bare');
    CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY, note text);
    CREATE TABLE \"Orders\" (id int PRIMARY KEY, note text)";

/// A file of keys of the test's own; gone at its end.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str, content: &str) -> Keys {
        let path = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Keys(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn signed(header: &Value, claims: &Value, key: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

fn token(shapes: Value) -> String {
    signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": FAR, "shapes": shapes}), KEY)
}

fn mine() -> Value {
    json!({"table": "public.orders", "where": "user_id = $1", "params": {"1": "7"}})
}

async fn serve_with(place: &Place, keys: &Keys, more: &[(&str, &str)]) -> Serve {
    let own = [("FOREBAY_SERVE_TOKENS", "required"), ("FOREBAY_IDENTITY_JWT_SECRET_FILE", keys.path())];
    place.serve_with(&[&own[..], more].concat()).await
}

/// One who shows a token.
struct Bearer<'a> {
    serve: &'a Serve,
    line: String,
}

impl<'a> Bearer<'a> {
    fn new(serve: &'a Serve, shapes: Value) -> Self {
        Bearer::showing(serve, &token(shapes))
    }

    fn showing(serve: &'a Serve, token: &str) -> Self {
        Bearer { serve, line: format!("Authorization: Bearer {token}") }
    }

    async fn ask(&self, method: &str, params: &[(&str, &str)], body: &str) -> HttpResponse {
        self.serve.ask(method, &path(params), &[&self.line], body).await
    }

    async fn get(&self, params: &[(&str, &str)]) -> HttpResponse {
        self.ask("GET", params, "").await
    }

    async fn begin(&self, params: &[(&str, &str)]) -> HttpConnection {
        HttpConnection::get(self.serve.addr, &path(params), &[&self.line]).await
    }

    /// All rows of a shape, as they are and until it is up to date.
    async fn rows(&self, params: &[(&str, &str)]) -> Vec<Value> {
        let mut rows = Vec::new();
        let (mut handle, mut offset) = (String::new(), "-1".to_owned());
        loop {
            let answer = self.get(&[params, &[("handle", &handle), ("offset", &offset)]].concat()).await;
            assert_eq!(answer.head.status, 200, "{params:?}: {}", String::from_utf8_lossy(&answer.body));
            let messages = answer.json();
            rows.extend(rows_of(messages.as_array().unwrap()).into_iter().map(|row| row["value"].clone()));
            let named = |name| answer.head.header(name).unwrap().to_owned();
            (handle, offset) = (named("electric-handle"), named("electric-offset"));
            if answer.head.header("electric-up-to-date").is_some() {
                return rows;
            }
        }
    }

    async fn ids(&self, params: &[(&str, &str)]) -> Vec<String> {
        self.rows(params).await.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[track_caller]
fn is_refused(answer: &HttpResponse, status: u16, code: &str) {
    let body = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.head.status, status, "{} {body}", answer.head.text);
    assert_eq!(answer.json()["code"], code, "{body}");
    assert_eq!(answer.head.header("cache-control"), Some("no-store"));
    for header in ["electric-handle", "electric-schema", "electric-offset"] {
        assert_eq!(answer.head.header(header), None, "{}", answer.head.text);
    }
}

const ORDERS: [(&str, &str); 1] = [("table", "orders")];

#[tokio::test]
async fn a_bearer_reads_the_rows_of_the_grant_and_no_clause_gets_out_of_it() {
    let (place, keys) = (Place::new(SQL), Keys::new("rows", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    assert_eq!(bearer.ids(&ORDERS).await, ["1", "3"]);
    for (clause, expected) in [
        ("true", &["1", "3"][..]),
        ("user_id = 8", &[]),
        ("user_id IS NULL", &[]),
        ("total > 10", &["3"]),
        ("user_id = 8 OR true", &["1", "3"]),
        ("total > 0 OR user_id = 8 OR id = 2", &["1", "3"]),
        ("NOT (user_id = 7)", &[]),
        ("user_id IS DISTINCT FROM 7", &[]),
        ("CASE WHEN true THEN true ELSE false END", &["1", "3"]),
        ("coalesce(user_id, 7) = 7", &["1", "3"]),
        // Fail on others' rows; whoever could tell would know them.
        ("10 / (total - 20) <> 0", &["1", "3"]),
        ("100 / (total - 40) <> 0", &["1", "3"]),
        ("CASE WHEN note = 'theirs' THEN 1 / (total - 20) = 1 ELSE true END", &["1", "3"]),
    ] {
        let params = [ORDERS[0], ("where", clause)];
        assert_eq!(bearer.ids(&params).await, expected, "{clause}");
    }
    // A clause is read on its own first, so that nothing is left open.
    for clause in [
        "true) OR (true",
        "true) --",
        "total > 0 --",
        "true /*",
        "1 = 1); SELECT (1 = 1",
        "true) ELSE true END OR (CASE WHEN (true",
        "true ELSE true END",
        "id IN (SELECT id FROM orders)",
        "user_id = $1",
        "$1",
    ] {
        let answer = bearer.get(&[ORDERS[0], ("where", clause), ("offset", "-1")]).await;
        let body = String::from_utf8_lossy(&answer.body);
        let is_harmless = answer.head.status == 200 && !body.contains("theirs") && !body.contains("nobody");
        assert!(answer.head.status == 400 || is_harmless, "{clause}: {body}");
    }
    // The client's parameters are its own, whatever numbers the grant uses.
    let params =
        [ORDERS[0], ("where", "user_id = $1 OR total = $2"), ("params[1]", "8"), ("params[2]", "30")];
    assert_eq!(bearer.ids(&params).await, ["3"]);
    let unused = [ORDERS[0], ("params[1]", "8")];
    assert_eq!(bearer.ids(&unused).await, ["1", "3"]);
    // What isn't written the same is the same.
    for table in ["public.orders", "ORDERS", "\"orders\"", "Public.\"orders\""] {
        assert_eq!(bearer.ids(&[("table", table)]).await, ["1", "3"], "{table}");
    }
}

#[tokio::test]
async fn other_tables_are_refused_whether_they_are_there_or_not() {
    let (place, keys) = (Place::new(SQL), Keys::new("tables", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let mut bodies = Vec::new();
    for table in
        ["secrets", "nowhere", "public.secrets", "other.orders", "\"Orders\"", "pg_catalog.pg_authid"]
    {
        for (method, body) in [("GET", ""), ("POST", "{\"where\": \"true\"}")] {
            let answer = bearer.ask(method, &[("table", table), ("offset", "-1")], body).await;
            assert_eq!((answer.head.status, &answer.json()["code"]), (403, &json!("not_granted")), "{table}");
            bodies.push(answer.body);
        }
        let answer =
            bearer.get(&[("table", table), ("offset", "0_0"), ("handle", "1-2"), ("live", "")]).await;
        is_refused(&answer, 403, "not_granted");
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "one answer for all");
    let published = "SELECT count(*)::text FROM pg_publication_tables WHERE tablename <> 'orders'";
    assert_eq!(place.ask(published).as_deref(), Some("0"), "nothing was touched");
    let none =
        Bearer::showing(&serve, &signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": FAR}), KEY));
    is_refused(&none.get(&[ORDERS[0], ("offset", "-1")]).await, 403, "not_granted");
    is_refused(&Bearer::new(&serve, json!([])).get(&[ORDERS[0], ("offset", "-1")]).await, 403, "not_granted");
    // What isn't understood grants nothing, not even the rest.
    for slip in [json!({"table": "secrets", "wher": "false"}), json!({"table": "secrets", "where": ""})] {
        let bearer = Bearer::new(&serve, json!([mine(), slip]));
        is_refused(&bearer.get(&[ORDERS[0], ("offset", "-1")]).await, 401, "bad_grant");
    }
    let broken = Bearer::new(&serve, json!([{"table": "orders", "where": "no_such = 1"}]));
    is_refused(&broken.get(&[ORDERS[0], ("offset", "-1")]).await, 401, "bad_grant");
}

#[tokio::test]
async fn columns_that_are_not_granted_might_as_well_not_be_there() {
    let (place, keys) = (Place::new(SQL), Keys::new("columns", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let mut grant = mine();
    grant["columns"] = json!(["total"]);
    let bearer = Bearer::new(&serve, json!([grant]));
    let rows = [json!({"id": "1", "total": "10"}), json!({"id": "3", "total": "30"})];
    assert_eq!(bearer.rows(&ORDERS).await, rows, "the grant's, and the key's");
    assert_eq!(bearer.rows(&[ORDERS[0], ("columns", "id,total")]).await, rows);
    assert_eq!(bearer.rows(&[ORDERS[0], ("columns", "id")]).await, [json!({"id": "1"}), json!({"id": "3"})]);
    assert_eq!(bearer.rows(&[ORDERS[0], ("queryable_columns", "id,total")]).await, rows);
    let first = bearer.get(&[ORDERS[0], ("offset", "-1")]).await;
    let schema = first.head.header("electric-schema").unwrap();
    assert!(!schema.contains("note") && !schema.contains("user_id"), "{schema}");
    for (name, value) in [
        ("columns", "id,note"),
        ("columns", "id,total,user_id"),
        ("columns", "id,nowhere"),
        ("columns", "id,\"note\""),
        ("queryable_columns", "id,total,note"),
        ("queryable_columns", "id,nowhere"),
    ] {
        is_refused(&bearer.get(&[ORDERS[0], (name, value), ("offset", "-1")]).await, 403, "not_granted");
    }
    // Not by a clause or an order either: both are told of a column that is hidden what they are told of one that isn't there.
    let complaint = async |params: &[(&str, &str)], name: &str| {
        let answer = bearer.get(&[&ORDERS[..], params, &[("offset", "-1")]].concat()).await;
        assert_eq!(answer.head.status, 400, "{params:?}: {}", String::from_utf8_lossy(&answer.body));
        String::from_utf8(answer.body).unwrap().replace(name, "NAME")
    };
    for (clause, field) in [
        ("NAME = 'mine'", "where"),
        ("orders.NAME IS NULL", "where"),
        ("NAME = '7'", "subset__where"),
        ("length(NAME) = 4", "subset__where"),
        ("id > 0 AND NAME ~ 'mine'", "subset__where"),
    ] {
        let (hidden, absent) = (clause.replace("NAME", "note"), clause.replace("NAME", "nope"));
        assert_eq!(
            complaint(&[(field, &hidden)], "note").await,
            complaint(&[(field, &absent)], "nope").await
        );
    }
    let order = |name| [("subset__order_by", name), ("subset__limit", "1")];
    assert_eq!(complaint(&order("note"), "note").await, complaint(&order("nope"), "nope").await);
    let ordered = bearer.get(&[&ORDERS[..], &order("total DESC"), &[("offset", "-1")]].concat()).await;
    assert_eq!(ordered.json()["data"][0]["value"], rows[1], "{}", String::from_utf8_lossy(&ordered.body));
    // The key of a table without a primary key is all its columns.
    let bare = Bearer::new(&serve, json!([{"table": "bare", "columns": ["id"]}]));
    is_refused(&bare.get(&[("table", "bare"), ("offset", "-1")]).await, 403, "not_granted");
    let whole = Bearer::new(&serve, json!([{"table": "bare"}]));
    assert_eq!(whole.ids(&[("table", "bare")]).await, ["1"]);
    // Of several grants of a table, the first that has what is asked for.
    let both =
        Bearer::new(&serve, json!([grant, {"table": "orders", "where": "user_id = 8", "columns": ["note"]}]));
    assert_eq!(both.ids(&ORDERS).await, ["1", "3"]);
    assert_eq!(both.ids(&[ORDERS[0], ("columns", "id,note")]).await, ["2"]);
    is_refused(
        &both.get(&[ORDERS[0], ("columns", "id,note,total"), ("offset", "-1")]).await,
        403,
        "not_granted",
    );
}

#[tokio::test]
async fn subsets_stay_within_the_grant_by_query_and_by_body() {
    let (place, keys) = (Place::new(SQL), Keys::new("subsets", KEY));
    let serve = serve_with(&place, &keys, &[]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let ids = |answer: &HttpResponse| -> Vec<String> {
        assert_eq!(answer.head.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let rows = answer.json()["data"].as_array().unwrap().clone();
        rows.iter().map(|row| row["value"]["id"].as_str().unwrap().to_owned()).collect()
    };
    for (clause, expected) in [
        ("true", &["1", "3"][..]),
        ("user_id = 8 OR true", &["1", "3"]),
        ("user_id = 8", &[]),
        ("total > 10", &["3"]),
        ("10 / (total - 20) <> 0", &["1", "3"]),
        ("note::int4 > 0", &[]),
        ("note ~ 'i'", &["1", "3"]),
        ("length(note) > 5 OR note ~ 'theirs'", &["3"]),
        ("10 / (length(note) - 6) <> 7", &["1", "3"]),
    ] {
        let by_query = bearer.get(&[ORDERS[0], ("offset", "-1"), ("subset__where", clause)]).await;
        let body = json!({"subset": {"where": clause}}).to_string();
        let by_body = bearer.ask("POST", &[ORDERS[0], ("offset", "-1")], &body).await;
        for answer in [by_query, by_body] {
            if clause.contains("::int4") {
                assert_eq!(answer.head.status, 400, "it fails on one's own rows, and says no more than that");
                assert!(!String::from_utf8_lossy(&answer.body).contains("mine"));
                continue;
            }
            let mut found = ids(&answer);
            found.sort();
            assert_eq!(found, expected, "{clause}");
            assert_eq!(answer.head.header("cache-control"), Some("private, no-cache"));
        }
    }
    let all =
        bearer.ask("POST", &[ORDERS[0], ("offset", "-1")], "{\"order_by\": \"id\", \"limit\": 10}").await;
    assert_eq!(ids(&all), ["1", "3"]);
    // A body says nothing of the table, the grant or the token.
    let sly = json!({"table": "secrets", "bearer": null, "where": "true", "token": "x"}).to_string();
    let answer = bearer.ask("POST", &[ORDERS[0], ("offset", "-1")], &sly).await;
    assert!(answer.head.status == 400 || ids(&answer) == ["1", "3"]);
    let bare = serve.ask("POST", &path(&[ORDERS[0], ("offset", "-1")]), &[], "{\"where\": \"true\"}").await;
    assert_eq!(bare.head.status, 401);
    let (clause, params) = (("subset__where", "user_id = $1"), ("subset__params", "{\"1\": 8}"));
    assert_eq!(ids(&bearer.get(&[ORDERS[0], ("offset", "-1"), clause, params]).await), Vec::<String>::new());
}

#[tokio::test]
async fn a_handle_of_another_s_shape_opens_nothing_and_is_not_even_known() {
    let (place, keys) = (Place::new(SQL), Keys::new("handles", KEY));
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let all = serve.reader(&[("table", "orders"), ("secret", "s3cret")]).await;
    let secrets = serve.reader(&[("table", "secrets"), ("secret", "s3cret")]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let own = bearer.get(&[ORDERS[0], ("offset", "-1")]).await;
    let own = own.head.header("electric-handle").unwrap();
    assert_ne!(own, all.handle);
    let mut heads = Vec::new();
    for handle in [&*all.handle, &secrets.handle, "1-2", "rubbish"] {
        for live in [&[][..], &[("live", "true")], &[("live", "true"), ("live_sse", "true")]] {
            for offset in [&*all.offset, "0_0", "0_inf"] {
                let params = [&[ORDERS[0], ("handle", handle), ("offset", offset)], live].concat();
                let answer = bearer.get(&params).await;
                assert_eq!(answer.head.status, 409, "{handle} {live:?}: {}", answer.head.text);
                assert_eq!(answer.head.header("electric-handle"), Some(own));
                assert_eq!(answer.head.header("cache-control"), Some("private, no-cache"));
                heads.push((answer.head.headers.len(), answer.body));
            }
        }
        let etag = format!("If-None-Match: \"{handle}:-1:0_0\"");
        let answer =
            serve.ask("GET", &path(&[ORDERS[0], ("offset", "-1")]), &[&bearer.line, &etag], "").await;
        assert_eq!(answer.head.status, 200, "another's tag isn't known");
        is_refused(
            &bearer.get(&[("table", "secrets"), ("handle", handle), ("offset", "0_0")]).await,
            403,
            "not_granted",
        );
    }
    assert!(heads.iter().all(|head| *head == heads[0]), "one answer, whether there is such a shape or not");
    // The other modes of the same shape are within the grant as well.
    for mode in [("replica", "full"), ("log", "changes_only")] {
        let rows = bearer.ids(&[ORDERS[0], mode]).await;
        assert!(rows.is_empty() || rows == ["1", "3"], "{mode:?}: {rows:?}");
    }
}

#[tokio::test]
async fn every_method_and_spelling_of_the_path_is_guarded() {
    let (place, keys) = (Place::new(SQL), Keys::new("methods", KEY));
    let settings = [("FOREBAY_SERVE_SECRET", "s3cret"), ("FOREBAY_SERVE_ALLOW_DELETE", "true")];
    let serve = serve_with(&place, &keys, &settings).await;
    let bearer = Bearer::new(&serve, json!([{"table": "orders"}]));
    let reader = serve.reader(&[("table", "orders"), ("secret", "s3cret")]).await;
    for path in ["/v1/shape", "/v1//shape", "/v1/%73hape", "//v1/shape/"] {
        for method in ["GET", "HEAD", "POST", "DELETE"] {
            let mut client = HttpConnection::connect(serve.addr).await;
            client.request(method, &format!("{path}?table=orders&offset=-1"), &[], "").await;
            assert_eq!(client.head().await.status, 401, "{method} {path}");
        }
    }
    let mut client = HttpConnection::connect(serve.addr).await;
    client.request("HEAD", &path(&[("table", "secrets"), ("offset", "-1")]), &[&bearer.line], "").await;
    assert_eq!(client.head().await.status, 403);
    for params in [
        &[("table", "orders")][..],
        &[("handle", &*reader.handle)],
        &[("table", "secrets")],
        &[("handle", "1-2")],
    ] {
        let answer = bearer.ask("DELETE", params, "").await;
        assert_eq!((answer.head.status, &answer.json()["code"]), (403, &json!("not_granted")), "{params:?}");
    }
    assert_eq!(serve.get(&[reader.params(), vec![]].concat()).await.head.status, 200, "it is still there");
    let preflight = ["Origin: https://app.example", "Access-Control-Request-Headers: authorization"];
    let answer = serve.ask("OPTIONS", "/v1/shape?table=secrets", &preflight, "").await;
    assert_eq!(answer.head.header("access-control-allow-headers"), Some("authorization"));
    assert_eq!((answer.head.status, answer.body.len()), (204, 0));
    let answer = serve.ask("DELETE", "/v1/shape?table=orders&secret=s3cret", &[], "").await;
    assert_eq!(answer.head.status, 202, "the secret may");
}

#[tokio::test]
async fn answers_are_kept_for_nobody_else() {
    let (place, keys) = (Place::new(SQL), Keys::new("caches", KEY));
    let serve = serve_with(&place, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let bearer = Bearer::new(&serve, json!([mine()]));
    let first = bearer.get(&[ORDERS[0], ("offset", "-1")]).await;
    assert_eq!(first.head.header("cache-control"), Some("private, no-cache"));
    assert_eq!(first.head.header("surrogate-control"), Some("no-store"));
    assert!(first.head.headers.iter().any(|(name, value)| name == "vary" && value == "authorization"));
    let etag = format!("If-None-Match: {}", first.head.header("etag").unwrap());
    let again = serve.ask("GET", &path(&[ORDERS[0], ("offset", "-1")]), &[&bearer.line, &etag], "").await;
    assert_eq!(again.head.status, 304, "what is known needn't be sent");
    assert_eq!(again.head.header("cache-control"), Some("private, no-cache"));
    let proxy = serve.get(&[ORDERS[0], ("offset", "-1"), ("secret", "s3cret")]).await;
    assert!(
        proxy.head.header("cache-control").unwrap().starts_with("public"),
        "the secret is in its address"
    );
    // A shape that a grant defines is one, whoever reads it.
    let same =
        serve.get(&[ORDERS[0], ("offset", "-1"), ("secret", "s3cret"), ("where", "user_id='7'")]).await;
    assert_eq!(same.head.header("electric-handle"), first.head.header("electric-handle"));
}

#[tokio::test]
async fn the_snippets_of_the_docs_sign_tokens_that_open_what_they_say() {
    let (place, keys) = (Place::new(SQL), Keys::new("snippets", &format!("{KEY}\n")));
    let serve = serve_with(&place, &keys, &[]).await;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokens.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for (language, program, end) in [("js", "node", "mjs"), ("python", "python3", "py")] {
        let (_, rest) = docs.split_once(&format!("```{language}\n")).expect("a snippet");
        let snippet = rest.split("```").next().unwrap().replace("/etc/forebay/jwt.secret", keys.path());
        let file = Keys::new(&format!("snippet.{end}"), &snippet);
        let output = std::process::Command::new(program).arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        let bearer = Bearer::showing(&serve, String::from_utf8(output.stdout).unwrap().trim());
        assert_eq!(bearer.ids(&ORDERS).await, ["1", "3"], "{program}");
        is_refused(&bearer.get(&[("table", "secrets"), ("offset", "-1")]).await, 403, "not_granted");
    }
}
