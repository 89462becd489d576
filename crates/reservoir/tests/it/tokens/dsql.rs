//! Tokens for Aurora DSQL, compared with those of botocore, with credentials from all sources.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_credential_types::Credentials;
use forebay_reservoir::{DsqlToken, TokenProvider};
use forebay_testkit::python;
use serde_json::{Value, json};

use super::credentials_endpoint::CredentialsEndpoint;
use super::{TempFolder, refusal};

const HOST: &str = "foo0bar1baz2quux3.dsql.eu-central-1.on.aws";
const REGION: &str = "eu-central-1";
const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SESSION_TOKEN: &str = "AQoDYXdz+/==EXAMPLE";
/// Marks a child process.
const CHILD: &str = "FOREBAY_TEST_DSQL_CHILD";

/// Input of a token.
#[derive(Debug, Clone, Copy)]
struct TokenCase<'a> {
    host: &'a str,
    region: &'a str,
    admin: bool,
    expires: u64,
    session_token: Option<&'a str>,
    /// Seconds since 1970.
    time: u64,
}

impl TokenCase<'_> {
    fn json(&self) -> Value {
        let TokenCase { host, region, admin, expires, session_token, time } = self;
        json!({
            "host": host, "region": region, "admin": admin, "expires": expires, "time": time,
            "key": KEY, "secret": SECRET, "session_token": session_token,
        })
    }

    fn ours(&self) -> String {
        let token = DsqlToken::new(self.host, self.region).expires(Duration::from_secs(self.expires));
        let token = if self.admin { token.admin() } else { token };
        let credentials = Credentials::new(KEY, SECRET, self.session_token.map(Into::into), None, "test");
        let time = UNIX_EPOCH + Duration::from_secs(self.time);
        token.presign(&credentials, time).unwrap().reveal().to_string()
    }
}

fn botocore(cases: &[TokenCase<'_>]) -> Vec<String> {
    let mut child = Command::new(python())
        .arg("-B") // leaves no compiled files beside the sources
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tokens/dsql.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let cases: Vec<Value> = cases.iter().map(TokenCase::json).collect();
    child.stdin.take().unwrap().write_all(json!(cases).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the script failed: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn tokens_are_byte_for_byte_those_of_botocore() {
    let mut cases = Vec::new();
    for host in
        [HOST, "vpce-1.dsql-fnh4.us-east-1.vpce.amazonaws.com", "UPPER.example", "db.example:5432", "db:443"]
    {
        for region in ["us-east-1", "eu-central-1", "ap-northeast-1", "us-gov-west-1", "cn-north-1"] {
            for session_token in [None, Some(SESSION_TOKEN), Some("é ~*'()%2F&?#\"\\=+/:;,@!$-._")] {
                for (expires, time) in
                    [(1, 0), (60, 951_782_400), (900, 1_764_547_199), (604_800, 4_102_444_800)]
                {
                    let case = TokenCase { host, region, admin: false, expires, session_token, time };
                    cases.extend([case, TokenCase { admin: true, ..case }]);
                }
            }
        }
    }
    let theirs = botocore(&cases);
    assert_eq!((cases.len(), theirs.len()), (600, 600));
    for (case, theirs) in cases.iter().zip(theirs) {
        assert_eq!(case.ours(), theirs, "{case:?}");
    }
}

#[tokio::test]
async fn an_invalid_host_is_an_error_that_names_it() {
    let credentials = Credentials::new(KEY, SECRET, None, None, "test");
    let token = DsqlToken::new("https://db.example/", REGION).credentials(credentials);
    assert_eq!(refusal(&token).await, "token for https://db.example/: isn't the name of a host");
}

#[tokio::test]
async fn a_token_expires_with_its_credentials_and_shows_no_secret() {
    let now = UNIX_EPOCH + Duration::from_secs(now());
    let valid_for = async |expiry: Option<Duration>| {
        let expiry = expiry.map(|left| now + left);
        let credentials = Credentials::new(KEY, SECRET, Some(SESSION_TOKEN.into()), expiry, "test");
        let token = DsqlToken::new(HOST, REGION).credentials(credentials);
        let given = token.token().await.unwrap();
        let shown = format!("{token:?} {given:?}");
        assert!(
            !shown.contains(SECRET) && !shown.contains("X-Amz") && !shown.contains(SESSION_TOKEN),
            "{shown}"
        );
        given.valid_for.unwrap()
    };
    assert_eq!(valid_for(None).await, Duration::from_secs(900));
    assert_eq!(valid_for(Some(Duration::from_secs(3600))).await, Duration::from_secs(900));
    let short = valid_for(Some(Duration::from_secs(300))).await;
    assert!((Duration::from_secs(200)..=Duration::from_secs(300)).contains(&short), "{short:?}");
}

#[expect(clippy::disallowed_methods, reason = "a signature is of a date")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Prints its token or error if it was started as a child by one of the tests below.
#[test]
fn a_child_prints_its_token() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let token = runtime.block_on(DsqlToken::new(HOST, REGION).token());
    match token {
        Ok(token) => println!("@{} {}", token.valid_for.unwrap().as_secs(), token.secret.reveal()),
        Err(error) => println!("@error {error}"),
    }
}

/// Starts a child with only this environment; returns the first word and the rest of its output.
fn child(home: &TempFolder, environment: &[(&str, &str)]) -> (String, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["tokens::dsql::a_child_prints_its_token", "--exact", "--nocapture", "--test-threads=1"])
        .env_clear()
        .env(CHILD, "")
        .env("HOME", &home.0)
        .env("PATH", "/usr/bin:/bin")
        // Tests don't request credentials of the machine that they run on.
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let output_text = String::from_utf8(output.stdout).unwrap();
    let line = output_text.lines().find_map(|line| Some(line.split_once('@')?.1));
    let (first, rest) = line.unwrap_or_else(|| panic!("{output_text}")).split_once(' ').unwrap();
    (first.to_string(), rest.to_string())
}

/// Checks that a child prints botocore's token of the same second; returns its validity in seconds.
fn agrees(home: &TempFolder, environment: &[(&str, &str)], session_token: Option<&str>) -> u64 {
    let begun = now();
    let (valid_for, token) = child(home, environment);
    // The child ran within a second or two: its time is among these.
    let cases: Vec<_> = (begun..=now())
        .map(|time| TokenCase { host: HOST, region: REGION, admin: false, expires: 900, session_token, time })
        .collect();
    let theirs = botocore(&cases);
    assert!(theirs.contains(&token), "{valid_for} {token}\nisn't any of\n{}", theirs.join("\n"));
    valid_for.parse().unwrap()
}

#[test]
fn credentials_come_from_the_environment() {
    let environment =
        [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", SESSION_TOKEN)];
    assert_eq!(agrees(&TempFolder::new(), &environment[..2], None), 900);
    assert_eq!(agrees(&TempFolder::new(), &environment, Some(SESSION_TOKEN)), 900);
}

#[test]
fn credentials_come_from_a_profile_file() {
    let home = TempFolder::new();
    std::fs::create_dir(home.path(".aws")).unwrap();
    let profiles = format!(
        "[default]\naws_access_key_id = other\naws_secret_access_key = other\n\n\
         [web]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    );
    home.write(".aws/credentials", profiles);
    assert_eq!(agrees(&home, &[("AWS_PROFILE", "web")], None), 900);
}

#[test]
fn credentials_come_from_a_program_that_a_profile_names() {
    let home = TempFolder::new();
    let json = json!({ "Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET });
    let path = home.write("credentials.json", json.to_string());
    std::fs::create_dir(home.path(".aws")).unwrap();
    home.write(".aws/config", format!("[default]\ncredential_process = cat {}\n", path.display()));
    assert_eq!(agrees(&home, &[], None), 900);
}

#[test]
fn credentials_come_from_the_endpoint_of_a_container() {
    let endpoint = CredentialsEndpoint::start(&[("GET /credentials", CONTAINER)]);
    let url = format!("http://{}/credentials", endpoint.addr);
    let environment =
        [("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()), ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pass")];
    assert_eq!(agrees(&TempFolder::new(), &environment, Some(SESSION_TOKEN)), 900);
    let requests = endpoint.requests();
    assert!(requests.iter().all(|head| head.contains("\nauthorization: pass")), "{requests:?}");
}

#[test]
fn credentials_come_from_the_endpoint_of_an_instance() {
    let endpoint = CredentialsEndpoint::start(&[
        ("PUT /latest/api/token", "pass"),
        ("GET /latest/meta-data/iam/security-credentials/", "role"),
        ("GET /latest/meta-data/iam/security-credentials/role", INSTANCE),
    ]);
    let url = format!("http://{}", endpoint.addr);
    let environment =
        [("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str()), ("AWS_EC2_METADATA_DISABLED", "false")];
    assert_eq!(agrees(&TempFolder::new(), &environment, Some(SESSION_TOKEN)), 900);
}

#[test]
fn without_credentials_the_error_names_the_host() {
    let (first, error) = child(&TempFolder::new(), &[]);
    assert_eq!(first, "error");
    assert!(error.starts_with(&format!("AWS credentials for {HOST}: ")), "{error}");
    assert!(error.contains("no credentials found in chain"), "{error}");
}

#[test]
fn an_invalid_profile_is_reported_without_its_secrets() {
    let home = TempFolder::new();
    std::fs::create_dir(home.path(".aws")).unwrap();
    home.write(
        ".aws/credentials",
        format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key {SECRET}\n"),
    );
    let (first, error) = child(&home, &[]);
    assert_eq!(first, "error");
    assert!(!error.contains(SECRET), "{error}");
}

const CONTAINER: &str = r#"{"AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "Token": "AQoDYXdz+/==EXAMPLE", "Expiration": "2099-01-01T00:00:00Z"}"#;
const INSTANCE: &str = r#"{"Code": "Success", "LastUpdated": "2025-01-01T00:00:00Z", "Type": "AWS-HMAC",
    "AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "Token": "AQoDYXdz+/==EXAMPLE", "Expiration": "2099-01-01T00:00:00Z"}"#;
