//! Tokens for RDS, compared with those of botocore.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use forebay_reservoir::{RdsToken, TokenProvider};
use forebay_testkit::python;
use serde_json::{Value, json};

use super::refusal;

const HOST: &str = "shop.abc123.eu-central-1.rds.amazonaws.com";
const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// Input of a token.
#[derive(Debug, Clone, Copy)]
struct RdsTokenCase<'a> {
    host: &'a str,
    port: u16,
    region: &'a str,
    user: &'a str,
    session_token: Option<&'a str>,
    /// Seconds since 1970.
    time: u64,
}

impl RdsTokenCase<'_> {
    fn json(&self) -> Value {
        let RdsTokenCase { host, port, region, user, session_token, time } = self;
        json!({
            "host": host, "port": port, "region": region, "user": user, "time": time,
            "key": KEY, "secret": SECRET, "session_token": session_token,
        })
    }

    fn ours(&self) -> String {
        let token = RdsToken::new(self.host, self.port, self.region, self.user);
        let credentials = Credentials::new(KEY, SECRET, self.session_token.map(Into::into), None, "test");
        let time = UNIX_EPOCH + Duration::from_secs(self.time);
        token.presign(&credentials, time).unwrap().reveal().to_string()
    }
}

fn botocore(cases: &[RdsTokenCase<'_>]) -> Vec<String> {
    let mut child = Command::new(python())
        .arg("-B") // leaves no compiled files beside the sources
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tokens/rds.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let cases: Vec<Value> = cases.iter().map(RdsTokenCase::json).collect();
    child.stdin.take().unwrap().write_all(json!(cases).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the script failed: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn rds_tokens_are_byte_for_byte_those_of_botocore() {
    let mut cases = Vec::new();
    for (host, port) in [(HOST, 5432), ("UPPER.example", 6000), ("db.example", 443), ("localhost", 80)] {
        for region in ["us-east-1", "eu-central-1", "us-gov-west-1", "cn-north-1"] {
            for user in ["app", "Forebay_1", "me@example.com", "a b+c/d=é~*'()%2F&?#"] {
                for session_token in [None, Some("AQoDYXdz+/==EXAMPLE")] {
                    for time in [0, 951_782_400, 1_764_547_199] {
                        cases.push(RdsTokenCase { host, port, region, user, session_token, time });
                    }
                }
            }
        }
    }
    let theirs = botocore(&cases);
    assert_eq!((cases.len(), theirs.len()), (384, 384));
    for (case, theirs) in cases.iter().zip(theirs) {
        assert_eq!(case.ours(), theirs, "{case:?}");
    }
}

#[tokio::test]
async fn an_rds_token_is_valid_for_fifteen_minutes_and_shows_no_secret() {
    let credentials = || Credentials::new(KEY, SECRET, None, None, "test");
    let token = RdsToken::new(HOST, 5432, "eu-central-1", "app").credentials(credentials());
    let given = token.token().await.unwrap();
    assert_eq!(given.valid_for, Some(Duration::from_secs(900)));
    let shown = format!("{token:?} {given:?}");
    assert!(!shown.contains(SECRET) && !shown.contains("X-Amz"), "{shown}");
    let invalid = RdsToken::new("https://db", 5432, "eu-central-1", "app").credentials(credentials());
    assert_eq!(refusal(&invalid).await, "token for https://db:5432: isn't the name of a host");
}
