//! IAM tokens through the whole program: each connection to a real Postgres logs in with one.

use aws_sdk_dynamodb::config::Credentials;
use forebay_sandbox::Postgres;

use super::token_verifier::{ExpectedToken, TokenVerifier};
use super::{NO_SOURCES, without_aws_sources};
use crate::serve::support::{ServeFixture, ServeProcess, summarize};
use crate::wire::until;

const USER: &str = "iam_user";
const REGION: &str = "eu-central-1";
const ACCESS_KEY: &str = "AKIDEXAMPLE";
const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SESSION: &str = "session/of+a=role";
const ITEMS_SHAPE: [(&str, &str); 1] = [("table", "items")];

/// A Postgres on which the user logs in with tokens.
struct IamDatabase {
    verifier: TokenVerifier,
    fixture: ServeFixture,
}

impl IamDatabase {
    fn start() -> Self {
        let credentials = Credentials::new(ACCESS_KEY, SECRET_KEY, Some(SESSION.to_owned()), None, "test");
        let verifier = TokenVerifier::start(credentials);
        let postgres = Postgres::builder().tls().hba(&verifier.hba_line(USER)).start().unwrap();
        let sql = format!(
            "CREATE ROLE {USER} LOGIN SUPERUSER; CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)"
        );
        let fixture = ServeFixture::on_postgres(Box::leak(Box::new(postgres)), &sql);
        IamDatabase { verifier, fixture }
    }

    /// Returns the settings of a program that connects with tokens of this kind.
    fn settings(&self, auth: &'static str) -> Vec<(&'static str, String)> {
        let (port, database) = (self.fixture.postgres.port(), &self.fixture.database);
        let mut settings = vec![
            ("DATABASE_URL", format!("postgres://{USER}@localhost:{port}/{database}?sslmode=verify-full")),
            ("FOREBAY_DATABASE_CA_FILE", self.fixture.postgres.ca_path().display().to_string()),
            ("FOREBAY_DATABASE_AUTH", auth.to_owned()),
            ("FOREBAY_DATABASE_AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_SESSION_TOKEN", SESSION.to_owned()),
        ];
        settings.extend(NO_SOURCES.map(|(name, value)| (name, value.to_owned())));
        let (host, region) = ("localhost".to_owned(), REGION.to_owned());
        self.verifier.expect(match auth {
            "rds-iam" => ExpectedToken::Rds { host, port, region },
            _ => ExpectedToken::Dsql { host, region },
        });
        settings
    }

    /// Waits until all connections of a server have logged in: one for replication, and four in the
    /// pools. Checks the tokens.
    async fn has_logins(&self, serve: &ServeProcess) {
        let mut logins = Vec::new();
        until("all connections have logged in", || {
            logins.extend(self.verifier.take_logins());
            std::future::ready(logins.len() >= 5)
        })
        .await;
        for login in &logins {
            assert!(login.user == USER && login.is_valid, "a token of {} was refused", login.user);
            assert!(!serve.log().contains(&login.token), "a token is in the log");
        }
    }
}

#[tokio::test]
async fn every_connection_of_a_server_logs_in_with_an_iam_token() {
    let database = IamDatabase::start();
    for (auth, row) in [("rds-iam", 2), ("dsql-iam", 4)] {
        let settings = database.settings(auth);
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let serve = database.fixture.serve_with(&settings).await;
        let mut reader = serve.reader(&ITEMS_SHAPE).await;
        database.fixture.sql(&format!("INSERT INTO items VALUES ({row})"));
        let inserted = reader.live_changes(&serve, 1).await;
        assert_eq!(summarize(&inserted), [format!("insert {row}")]);
        database.has_logins(&serve).await;

        // Lost connections log in again.
        database.fixture.sql(&format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = '{USER}'"
        ));
        let next = row + 1;
        database.fixture.sql(&format!("INSERT INTO items VALUES ({next})"));
        assert_eq!(summarize(&reader.live_changes(&serve, 1).await), [format!("insert {next}")]);
        database.has_logins(&serve).await;
        serve.stop().await;
    }
}

#[test]
fn a_token_for_another_key_region_or_user_is_refused_by_the_server() {
    let database = IamDatabase::start();
    let check = |change: (&str, &str)| {
        let output = without_aws_sources(&["check", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .envs(database.settings("rds-iam"))
            .env("FOREBAY_STORAGE_DIR", &database.fixture.dir)
            .env(change.0, change.1)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = "LDAP authentication failed";
    let passed = check(("AWS_REGION", "unused"));
    assert!(!passed.contains(refused), "{passed}");
    for change in [
        ("AWS_SECRET_ACCESS_KEY", "another"),
        ("AWS_SESSION_TOKEN", "another"),
        ("FOREBAY_DATABASE_AWS_REGION", "eu-west-1"),
        ("FOREBAY_DATABASE_AUTH", "dsql-iam"),
    ] {
        let text = check(change);
        assert!(text.contains(refused), "{change:?}: {text}");
        assert!(!text.contains("X-Amz-Signature"), "{change:?}: {text}");
    }
    let logins = database.verifier.take_logins();
    assert!(logins.iter().any(|login| login.is_valid), "the right token is accepted");
    assert!(logins.iter().filter(|login| !login.is_valid).count() >= 4);
}
