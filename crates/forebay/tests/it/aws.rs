//! Builds with the feature `aws`: gates and servers that share limits in a DynamoDB table, and IAM
//! tokens.

mod iam_tokens;
mod token_verifier;

use std::process::Command;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region};
use forebay_quota::DynamoStore;
use forebay_sandbox::DynamoDb;
use rustix::process::Signal;

use crate::forebay_process::{ForebayProcess, forebay};
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::serve::support::{ServeFixture, summarize};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::until;

const TABLE: &str = "forebay-quota";
const REGION: &str = "us-east-1";
const TOTAL: usize = 5;

/// Variables that hide all sources of the AWS SDK on this machine.
const NO_SOURCES: [(&str, &str); 3] = [
    ("AWS_CONFIG_FILE", "/nowhere/config"),
    ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
];

async fn create_table() {
    let config = DynamoStore::client_config()
        .endpoint_url(DynamoDb::shared().url())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("sandbox", "sandbox", None, None, "sandbox"));
    DynamoStore::create_table(Client::from_conf(config.build()), TABLE, "unused").await.unwrap();
}

/// Returns the settings of instances that share `total` streams in the table.
fn table_settings<'a>(namespace: &'a str, url: &'a str, total: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut settings = vec![
        ("FOREBAY_QUOTA_TABLE", TABLE),
        ("FOREBAY_REDIS_NAMESPACE", namespace),
        ("FOREBAY_QUOTA_BEAT_MS", "500"),
        ("FOREBAY_QUOTA_TTL_MS", "5000"),
        ("FOREBAY_ADMISSION_TOTAL", total),
        ("AWS_ENDPOINT_URL", url),
        ("AWS_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", "sandbox"),
        ("AWS_SECRET_ACCESS_KEY", "sandbox"),
    ];
    settings.extend(NO_SOURCES);
    settings
}

/// Returns a command without the AWS sources of this machine.
fn without_aws_sources(args: &[&str]) -> Command {
    let mut command = forebay(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.envs(NO_SOURCES);
    command
}

#[tokio::test]
async fn gates_share_their_total_through_a_dynamodb_table() {
    create_table().await;
    let (origin, url, total) =
        (StreamingUpstream::start().await, DynamoDb::shared().url(), TOTAL.to_string());
    let mut settings = table_settings("gates", &url, &total);
    settings.extend(USERS);
    let gate = async || {
        let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &settings);
        until("the quota mode is normal", async || {
            gate.status().await["admission"]["quota"]["mode"] == "normal"
        })
        .await;
        gate
    };
    let (full, other) = (gate().await, gate().await);
    let mut streams = Vec::new();
    for number in 0..TOTAL {
        streams.push(open_stream(&full, "/", &[&format!("X-User-ID: {number}")]).await.unwrap());
    }
    let refused = open_stream(&other, "/", &["X-User-ID: late"]).await.unwrap_err();
    assert_eq!(refused.head.status, 503);

    full.signal(Signal::KILL);
    until("the permits of the killed gate are free", async || {
        open_stream(&other, "/", &["X-User-ID: late"]).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn servers_share_their_total_through_a_dynamodb_table() {
    create_table().await;
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let (url, total) = (DynamoDb::shared().url(), TOTAL.to_string());
    let settings = table_settings("servers", &url, &total);
    // One follows the database. The other waits for the lock, and serves the same storage.
    let (follower, waiting) = (fixture.serve_with(&settings).await, fixture.spawn(&settings));
    waiting.wait_for_health("waiting").await;
    for serve in [&follower, &waiting] {
        until("the quota mode is normal", async || serve.status().await["quota"]["mode"] == "normal").await;
    }
    let reader = follower.reader(&[("table", "items")]).await;
    until("the waiting server has the shape", async || {
        waiting.get(&reader.params()).await.head.status == 200
    })
    .await;
    let mut streams = Vec::new();
    for serve in [&follower, &waiting, &follower, &waiting, &follower] {
        let stream = serve.events(&reader).await;
        assert_eq!(stream.head.status, 200, "{}", stream.head.text);
        streams.push(stream);
    }
    for serve in [&follower, &waiting] {
        let refused = serve.get(&[reader.params(), vec![("live", "true")]].concat()).await;
        assert_eq!(refused.head.status, 503, "{}", refused.head.text);
        assert_eq!(refused.json()["error"], "service_unavailable");
    }
    // A permit of one server is free for the other when its stream ends.
    drop(streams.remove(0));
    until("the waiting server admits another stream", async || {
        waiting.events(&reader).await.head.status == 200
    })
    .await;
    fixture.sql("INSERT INTO items VALUES (2)");
    for stream in &mut streams {
        let mut messages = Vec::new();
        while messages.is_empty() {
            messages = stream.until_up_to_date().await.0;
        }
        assert_eq!(summarize(&messages), ["insert 2"]);
    }
}

#[test]
fn a_table_without_a_region_is_refused_with_the_variable_to_set() {
    let args =
        ["gate", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let output = without_aws_sources(&args).env("FOREBAY_QUOTA_TABLE", TABLE).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("set AWS_REGION"), "{errors}");
}

#[test]
fn connections_with_iam_tokens_need_aws_credentials() {
    let host = "shop.abc.eu-central-1.rds.amazonaws.com";
    for auth in ["rds-iam", "dsql-iam"] {
        let output = without_aws_sources(&["check", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("DATABASE_URL", format!("postgres://app@{host}/shop?sslmode=require"))
            .env("FOREBAY_DATABASE_AUTH", auth)
            .env("FOREBAY_DATABASE_AWS_REGION", "eu-central-1")
            .env("FOREBAY_STORAGE_DIR", env!("CARGO_TARGET_TMPDIR"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("AWS credentials for {host}")), "{auth}: {text}");
    }
}
