//! Shape tokens: until a token expires, its bearer reads the granted rows and columns, and nothing
//! else.

mod changes;
mod validity;

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use super::support::{ServeFixture, ServeProcess, changes as rows_of, path};
use crate::wire::{HttpConnection, HttpResponse};

const KEY: &str = "a key of the test, of more than thirty-two bytes";
/// An expiry in the distant future.
const FAR_FUTURE: u64 = 4_000_000_000;
const CREATE_TABLES: &str = "CREATE TABLE orders (id int PRIMARY KEY, user_id int, total int, note text);
    INSERT INTO orders VALUES (1, 7, 10, 'mine'), (2, 8, 20, 'theirs'), (3, 7, 30, 'mine too'), (4, NULL, 40, 'nobody''s');
    CREATE TABLE secrets (id int PRIMARY KEY, note text);
    INSERT INTO secrets VALUES (1, 'hidden');
    CREATE TABLE bare (id int, note text); ALTER TABLE bare REPLICA IDENTITY FULL;
    INSERT INTO bare VALUES (1, 'bare');
    CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY, note text);
    CREATE TABLE \"Orders\" (id int PRIMARY KEY, note text)";

/// A temporary file, for keys. Removed when dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, content: &str) -> KeyFile {
        let path = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        KeyFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Signs a JWT by HS256.
fn signed(header: &Value, claims: &Value, key: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

/// Returns a valid token with these grants.
fn token(shapes: Value) -> String {
    signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": FAR_FUTURE, "shapes": shapes}), KEY)
}

/// Returns a grant for the orders of user 7.
fn own_orders() -> Value {
    json!({"table": "public.orders", "where": "user_id = $1", "params": {"1": "7"}})
}

/// Starts a server that requires tokens.
async fn serve_with(fixture: &ServeFixture, keys: &KeyFile, more: &[(&str, &str)]) -> ServeProcess {
    let own = [("FOREBAY_SERVE_TOKENS", "required"), ("FOREBAY_IDENTITY_JWT_SECRET_FILE", keys.path())];
    fixture.serve_with(&[&own[..], more].concat()).await
}

/// A client with a token.
struct TokenBearer<'a> {
    serve: &'a ServeProcess,
    line: String,
}

impl<'a> TokenBearer<'a> {
    fn new(serve: &'a ServeProcess, shapes: Value) -> Self {
        TokenBearer::with_token(serve, &token(shapes))
    }

    /// Creates a client with this token.
    fn with_token(serve: &'a ServeProcess, token: &str) -> Self {
        TokenBearer { serve, line: format!("Authorization: Bearer {token}") }
    }

    async fn request(&self, method: &str, params: &[(&str, &str)], body: &str) -> HttpResponse {
        self.serve.request(method, &path(params), &[&self.line], body).await
    }

    async fn get(&self, params: &[(&str, &str)]) -> HttpResponse {
        self.request("GET", params, "").await
    }

    /// Sends a GET and returns before the response.
    async fn start_get(&self, params: &[(&str, &str)]) -> HttpConnection {
        HttpConnection::get(self.serve.addr, &path(params), &[&self.line]).await
    }

    /// Reads a shape until it is up to date, and returns all rows.
    async fn rows(&self, params: &[(&str, &str)]) -> Vec<Value> {
        let mut rows = Vec::new();
        let (mut handle, mut offset) = (String::new(), "-1".to_owned());
        loop {
            let response = self.get(&[params, &[("handle", &handle), ("offset", &offset)]].concat()).await;
            assert_eq!(response.head.status, 200, "{params:?}: {}", String::from_utf8_lossy(&response.body));
            let messages = response.json();
            rows.extend(rows_of(messages.as_array().unwrap()).into_iter().map(|row| row["value"].clone()));
            let named = |name| response.head.header(name).unwrap().to_owned();
            (handle, offset) = (named("electric-handle"), named("electric-offset"));
            if response.head.header("electric-up-to-date").is_some() {
                return rows;
            }
        }
    }

    async fn ids(&self, params: &[(&str, &str)]) -> Vec<String> {
        self.rows(params).await.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }
}

/// Checks a refusal: status, code, and no headers that reveal a shape.
#[track_caller]
fn assert_refused(response: &HttpResponse, status: u16, code: &str) {
    let body = String::from_utf8_lossy(&response.body);
    assert_eq!(response.head.status, status, "{} {body}", response.head.text);
    assert_eq!(response.json()["code"], code, "{body}");
    assert_eq!(response.head.header("cache-control"), Some("no-store"));
    for header in ["electric-handle", "electric-schema", "electric-offset"] {
        assert_eq!(response.head.header(header), None, "{}", response.head.text);
    }
}

const ORDERS_SHAPE: [(&str, &str); 1] = [("table", "orders")];

#[tokio::test]
async fn a_bearer_reads_only_the_rows_of_the_grant_with_any_clause() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("rows", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    assert_eq!(bearer.ids(&ORDERS_SHAPE).await, ["1", "3"]);
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
        // These fail on rows of others. An error would reveal those rows.
        ("10 / (total - 20) <> 0", &["1", "3"]),
        ("100 / (total - 40) <> 0", &["1", "3"]),
        ("CASE WHEN note = 'theirs' THEN 1 / (total - 20) = 1 ELSE true END", &["1", "3"]),
    ] {
        let params = [ORDERS_SHAPE[0], ("where", clause)];
        assert_eq!(bearer.ids(&params).await, expected, "{clause}");
    }
    // A clause is parsed on its own, so it can't close a bracket of the statement.
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
        let response = bearer.get(&[ORDERS_SHAPE[0], ("where", clause), ("offset", "-1")]).await;
        let body = String::from_utf8_lossy(&response.body);
        let is_harmless = response.head.status == 200 && !body.contains("theirs") && !body.contains("nobody");
        assert!(response.head.status == 400 || is_harmless, "{clause}: {body}");
    }
    // Parameters of the client and of the grant are independent.
    let params =
        [ORDERS_SHAPE[0], ("where", "user_id = $1 OR total = $2"), ("params[1]", "8"), ("params[2]", "30")];
    assert_eq!(bearer.ids(&params).await, ["3"]);
    let unused = [ORDERS_SHAPE[0], ("params[1]", "8")];
    assert_eq!(bearer.ids(&unused).await, ["1", "3"]);
    // Other spellings of the granted table.
    for table in ["public.orders", "ORDERS", "\"orders\"", "Public.\"orders\""] {
        assert_eq!(bearer.ids(&[("table", table)]).await, ["1", "3"], "{table}");
    }
}

#[tokio::test]
async fn other_tables_are_refused_whether_they_exist_or_not() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("tables", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let mut bodies = Vec::new();
    for table in
        ["secrets", "nowhere", "public.secrets", "other.orders", "\"Orders\"", "pg_catalog.pg_authid"]
    {
        for (method, body) in [("GET", ""), ("POST", "{\"where\": \"true\"}")] {
            let response = bearer.request(method, &[("table", table), ("offset", "-1")], body).await;
            assert_eq!(
                (response.head.status, &response.json()["code"]),
                (403, &json!("not_granted")),
                "{table}"
            );
            bodies.push(response.body);
        }
        let response =
            bearer.get(&[("table", table), ("offset", "0_0"), ("handle", "1-2"), ("live", "")]).await;
        assert_refused(&response, 403, "not_granted");
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "all refusals are equal");
    let published = "SELECT count(*)::text FROM pg_publication_tables WHERE tablename <> 'orders'";
    assert_eq!(fixture.query_value(published).as_deref(), Some("0"), "no other table is published");
    let none = TokenBearer::with_token(
        &serve,
        &signed(&json!({"alg": "HS256"}), &json!({"sub": "ada", "exp": FAR_FUTURE}), KEY),
    );
    assert_refused(&none.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await, 403, "not_granted");
    assert_refused(
        &TokenBearer::new(&serve, json!([])).get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await,
        403,
        "not_granted",
    );
    // One invalid grant makes the whole token invalid.
    for slip in [json!({"table": "secrets", "wher": "false"}), json!({"table": "secrets", "where": ""})] {
        let bearer = TokenBearer::new(&serve, json!([own_orders(), slip]));
        assert_refused(&bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await, 401, "bad_grant");
    }
    let broken = TokenBearer::new(&serve, json!([{"table": "orders", "where": "no_such = 1"}]));
    assert_refused(&broken.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await, 401, "bad_grant");
}

#[tokio::test]
async fn columns_that_are_not_granted_look_like_columns_that_do_not_exist() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("columns", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let mut grant = own_orders();
    grant["columns"] = json!(["total"]);
    let bearer = TokenBearer::new(&serve, json!([grant]));
    let rows = [json!({"id": "1", "total": "10"}), json!({"id": "3", "total": "30"})];
    assert_eq!(bearer.rows(&ORDERS_SHAPE).await, rows, "the granted columns and the key");
    assert_eq!(bearer.rows(&[ORDERS_SHAPE[0], ("columns", "id,total")]).await, rows);
    assert_eq!(
        bearer.rows(&[ORDERS_SHAPE[0], ("columns", "id")]).await,
        [json!({"id": "1"}), json!({"id": "3"})]
    );
    assert_eq!(bearer.rows(&[ORDERS_SHAPE[0], ("queryable_columns", "id,total")]).await, rows);
    let first = bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await;
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
        assert_refused(
            &bearer.get(&[ORDERS_SHAPE[0], (name, value), ("offset", "-1")]).await,
            403,
            "not_granted",
        );
    }
    // In clauses and orders, a hidden column gets the same error as one that doesn't exist.
    let error_for = async |params: &[(&str, &str)], name: &str| {
        let response = bearer.get(&[&ORDERS_SHAPE[..], params, &[("offset", "-1")]].concat()).await;
        assert_eq!(response.head.status, 400, "{params:?}: {}", String::from_utf8_lossy(&response.body));
        String::from_utf8(response.body).unwrap().replace(name, "NAME")
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
            error_for(&[(field, &hidden)], "note").await,
            error_for(&[(field, &absent)], "nope").await
        );
    }
    let order = |name| [("subset__order_by", name), ("subset__limit", "1")];
    assert_eq!(error_for(&order("note"), "note").await, error_for(&order("nope"), "nope").await);
    let ordered = bearer.get(&[&ORDERS_SHAPE[..], &order("total DESC"), &[("offset", "-1")]].concat()).await;
    assert_eq!(ordered.json()["data"][0]["value"], rows[1], "{}", String::from_utf8_lossy(&ordered.body));
    // Without a primary key, all columns are the key.
    let bare = TokenBearer::new(&serve, json!([{"table": "bare", "columns": ["id"]}]));
    assert_refused(&bare.get(&[("table", "bare"), ("offset", "-1")]).await, 403, "not_granted");
    let whole = TokenBearer::new(&serve, json!([{"table": "bare"}]));
    assert_eq!(whole.ids(&[("table", "bare")]).await, ["1"]);
    // The first grant that covers the requested columns applies.
    let both = TokenBearer::new(
        &serve,
        json!([grant, {"table": "orders", "where": "user_id = 8", "columns": ["note"]}]),
    );
    assert_eq!(both.ids(&ORDERS_SHAPE).await, ["1", "3"]);
    assert_eq!(both.ids(&[ORDERS_SHAPE[0], ("columns", "id,note")]).await, ["2"]);
    assert_refused(
        &both.get(&[ORDERS_SHAPE[0], ("columns", "id,note,total"), ("offset", "-1")]).await,
        403,
        "not_granted",
    );
}

#[tokio::test]
async fn subsets_stay_within_the_grant_by_query_and_by_body() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("subsets", KEY));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let ids = |response: &HttpResponse| -> Vec<String> {
        assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
        let rows = response.json()["data"].as_array().unwrap().clone();
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
        let by_query = bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1"), ("subset__where", clause)]).await;
        let body = json!({"subset": {"where": clause}}).to_string();
        let by_body = bearer.request("POST", &[ORDERS_SHAPE[0], ("offset", "-1")], &body).await;
        for response in [by_query, by_body] {
            if clause.contains("::int4") {
                assert_eq!(
                    response.head.status, 400,
                    "the clause fails on own rows; the error reveals no value"
                );
                assert!(!String::from_utf8_lossy(&response.body).contains("mine"));
                continue;
            }
            let mut found = ids(&response);
            found.sort();
            assert_eq!(found, expected, "{clause}");
            assert_eq!(response.head.header("cache-control"), Some("private, no-cache"));
        }
    }
    let all = bearer
        .request("POST", &[ORDERS_SHAPE[0], ("offset", "-1")], "{\"order_by\": \"id\", \"limit\": 10}")
        .await;
    assert_eq!(ids(&all), ["1", "3"]);
    // A body can't set the table, the grant or the token.
    let override_attempt =
        json!({"table": "secrets", "bearer": null, "where": "true", "token": "x"}).to_string();
    let response = bearer.request("POST", &[ORDERS_SHAPE[0], ("offset", "-1")], &override_attempt).await;
    assert!(response.head.status == 400 || ids(&response) == ["1", "3"]);
    let bare = serve
        .request("POST", &path(&[ORDERS_SHAPE[0], ("offset", "-1")]), &[], "{\"where\": \"true\"}")
        .await;
    assert_eq!(bare.head.status, 401);
    let (clause, params) = (("subset__where", "user_id = $1"), ("subset__params", "{\"1\": 8}"));
    assert_eq!(
        ids(&bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1"), clause, params]).await),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_foreign_handle_gets_the_same_409_as_an_unknown_one() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("handles", KEY));
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let all = serve.reader(&[("table", "orders"), ("secret", "s3cret")]).await;
    let secrets = serve.reader(&[("table", "secrets"), ("secret", "s3cret")]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let own = bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await;
    let own = own.head.header("electric-handle").unwrap();
    assert_ne!(own, all.handle);
    let mut heads = Vec::new();
    for handle in [&*all.handle, &secrets.handle, "1-2", "rubbish"] {
        for live in [&[][..], &[("live", "true")], &[("live", "true"), ("live_sse", "true")]] {
            for offset in [&*all.offset, "0_0", "0_inf"] {
                let params = [&[ORDERS_SHAPE[0], ("handle", handle), ("offset", offset)], live].concat();
                let response = bearer.get(&params).await;
                assert_eq!(response.head.status, 409, "{handle} {live:?}: {}", response.head.text);
                assert_eq!(response.head.header("electric-handle"), Some(own));
                assert_eq!(response.head.header("cache-control"), Some("private, no-cache"));
                heads.push((response.head.headers.len(), response.body));
            }
        }
        let etag = format!("If-None-Match: \"{handle}:-1:0_0\"");
        let response = serve
            .request("GET", &path(&[ORDERS_SHAPE[0], ("offset", "-1")]), &[&bearer.line, &etag], "")
            .await;
        assert_eq!(response.head.status, 200, "an etag of a foreign shape doesn't match");
        assert_refused(
            &bearer.get(&[("table", "secrets"), ("handle", handle), ("offset", "0_0")]).await,
            403,
            "not_granted",
        );
    }
    assert!(
        heads.iter().all(|head| *head == heads[0]),
        "the response is the same whether the shape exists or not"
    );
    // Other modes of the shape are within the grant too.
    for mode in [("replica", "full"), ("log", "changes_only")] {
        let rows = bearer.ids(&[ORDERS_SHAPE[0], mode]).await;
        assert!(rows.is_empty() || rows == ["1", "3"], "{mode:?}: {rows:?}");
    }
}

#[tokio::test]
async fn every_method_and_spelling_of_the_path_is_guarded() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("methods", KEY));
    let settings = [("FOREBAY_SERVE_SECRET", "s3cret"), ("FOREBAY_SERVE_ALLOW_DELETE", "true")];
    let serve = serve_with(&fixture, &keys, &settings).await;
    let bearer = TokenBearer::new(&serve, json!([{"table": "orders"}]));
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
        let response = bearer.request("DELETE", params, "").await;
        assert_eq!(
            (response.head.status, &response.json()["code"]),
            (403, &json!("not_granted")),
            "{params:?}"
        );
    }
    assert_eq!(
        serve.get(&[reader.params(), vec![]].concat()).await.head.status,
        200,
        "the shape still exists"
    );
    let preflight = ["Origin: https://app.example", "Access-Control-Request-Headers: authorization"];
    let response = serve.request("OPTIONS", "/v1/shape?table=secrets", &preflight, "").await;
    assert_eq!(response.head.header("access-control-allow-headers"), Some("authorization"));
    assert_eq!((response.head.status, response.body.len()), (204, 0));
    let response = serve.request("DELETE", "/v1/shape?table=orders&secret=s3cret", &[], "").await;
    assert_eq!(response.head.status, 202, "the secret allows it");
}

#[tokio::test]
async fn responses_to_tokens_are_private_in_caches() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("caches", KEY));
    let serve = serve_with(&fixture, &keys, &[("FOREBAY_SERVE_SECRET", "s3cret")]).await;
    let bearer = TokenBearer::new(&serve, json!([own_orders()]));
    let first = bearer.get(&[ORDERS_SHAPE[0], ("offset", "-1")]).await;
    assert_eq!(first.head.header("cache-control"), Some("private, no-cache"));
    assert_eq!(first.head.header("surrogate-control"), Some("no-store"));
    assert!(first.head.headers.iter().any(|(name, value)| name == "vary" && value == "authorization"));
    let etag = format!("If-None-Match: {}", first.head.header("etag").unwrap());
    let again =
        serve.request("GET", &path(&[ORDERS_SHAPE[0], ("offset", "-1")]), &[&bearer.line, &etag], "").await;
    assert_eq!(again.head.status, 304, "a cached response isn't sent again");
    assert_eq!(again.head.header("cache-control"), Some("private, no-cache"));
    let proxy = serve.get(&[ORDERS_SHAPE[0], ("offset", "-1"), ("secret", "s3cret")]).await;
    assert!(
        proxy.head.header("cache-control").unwrap().starts_with("public"),
        "the secret is in the URL, so caches may share it"
    );
    // A grant and a plain request with the same clause share a shape.
    let same =
        serve.get(&[ORDERS_SHAPE[0], ("offset", "-1"), ("secret", "s3cret"), ("where", "user_id='7'")]).await;
    assert_eq!(same.head.header("electric-handle"), first.head.header("electric-handle"));
}

#[tokio::test]
async fn tokens_signed_by_the_snippets_of_the_docs_grant_what_they_state() {
    let (fixture, keys) = (ServeFixture::new(CREATE_TABLES), KeyFile::new("snippets", &format!("{KEY}\n")));
    let serve = serve_with(&fixture, &keys, &[]).await;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokens.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for (language, program, end) in [("js", "node", "mjs"), ("python", "python3", "py")] {
        let (_, rest) = docs.split_once(&format!("```{language}\n")).expect("a snippet");
        let snippet = rest.split("```").next().unwrap().replace("/etc/forebay/jwt.secret", keys.path());
        let file = KeyFile::new(&format!("snippet.{end}"), &snippet);
        let output = std::process::Command::new(program).arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        let bearer = TokenBearer::with_token(&serve, String::from_utf8(output.stdout).unwrap().trim());
        assert_eq!(bearer.ids(&ORDERS_SHAPE).await, ["1", "3"], "{program}");
        assert_refused(&bearer.get(&[("table", "secrets"), ("offset", "-1")]).await, 403, "not_granted");
    }
}
