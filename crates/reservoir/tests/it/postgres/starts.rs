//! Start-up of other protocols on a dialed stream.

use std::io;

use forebay_reservoir::{
    ChannelBinding, PostgresConnect, PostgresError, PostgresServerError, PostgresStartup,
    PostgresStartupParams, PostgresStream,
};
use forebay_testkit::sandbox::{Postgres, free_port};
use forebay_testkit::within;
use parking_lot::Mutex;

/// Returns the given results and records the parameters of each start-up.
struct FakeStartup {
    ends: fn(usize, &PostgresStream) -> Option<PostgresError>,
    seen: Mutex<Vec<String>>,
}

impl FakeStartup {
    fn new(ends: fn(usize, &PostgresStream) -> Option<PostgresError>) -> Self {
        FakeStartup { ends, seen: Mutex::default() }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }
}

impl PostgresStartup for FakeStartup {
    type Session = PostgresStream;

    async fn start(
        &self,
        stream: PostgresStream,
        params: &PostgresStartupParams<'_>,
    ) -> Result<PostgresStream, PostgresError> {
        let encrypted = if stream.is_encrypted() { "TLS" } else { "plain" };
        let (database, options) = (params.database(), params.options());
        let mut seen = self.seen.lock();
        seen.push(format!("{} {database:?} {options:?} {:?} {encrypted}", params.user(), params.password()));
        (self.ends)(seen.len(), &stream).map_or(Ok(stream), Err)
    }
}

fn refused(sqlstate: &str) -> PostgresError {
    let error = PostgresServerError::from_fields([(b'V', &b"FATAL"[..]), (b'C', sqlstate.as_bytes())]);
    PostgresError::Server { address: "somewhere".to_owned(), error }
}

fn hosts(ports: &[u16], rest: &str) -> PostgresConnect {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    PostgresConnect::new(&format!("postgres://me:pw@{}/db?{rest}", hosts.join(","))).unwrap()
}

#[tokio::test]
async fn a_start_up_gets_the_settings_of_the_connection_string() {
    let postgres = Postgres::builder().tls().start().unwrap();
    let startup = FakeStartup::new(|_, _| None);
    let connect = hosts(&[free_port(), postgres.port()], "options=-c%20a%3Db&channel_binding=disable");
    let stream = within("a session", connect.open_with(&startup)).await.unwrap();
    assert_eq!(startup.seen(), ["me Some(\"db\") Some(\"-c a=b\") Some(\"pw\") TLS"]);
    assert_eq!(stream.tls_server_end_point().unwrap().len(), 32);
    stream.set_receive_low_water(64 * 1024).unwrap();
    stream.set_receive_low_water(1).unwrap();
    within("the server's close", stream.shutdown_and_wait()).await;

    let socket = postgres.socket_dir().to_str().unwrap();
    let conninfo = format!("user=me host={socket} port={} channel_binding=prefer", postgres.port());
    let unix = PostgresConnect::new(&conninfo).unwrap();
    let stream = within("a session", unix.open_with(&startup)).await.unwrap();
    assert_eq!(startup.seen()[1], "me None None None plain");
    assert_eq!(stream.tls_server_end_point(), None);
    let error = stream.set_receive_low_water(2).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_ne!(ChannelBinding::Prefer, ChannelBinding::Require);
}

#[tokio::test]
async fn start_up_errors_decide_about_the_next_attempt() {
    let postgres = Postgres::builder().tls().start().unwrap();
    let twice = [postgres.port(), postgres.port()];
    let starting = FakeStartup::new(|number, _| (number == 1).then(|| refused("57P03")));
    within("a session", hosts(&twice, "").open_with(&starting)).await.unwrap();
    assert_eq!(starting.seen().len(), 2, "a starting server is skipped");

    let no = FakeStartup::new(|_, _| Some(refused("28P01")));
    let error = within("an error", hosts(&twice, "").open_with(&no)).await.unwrap_err();
    assert!(matches!(&error, PostgresError::Server { error, .. } if error.code() == "28P01"), "{error}");
    assert_eq!(no.seen().len(), 1, "a refusal ends the search");

    let not_by_tls = FakeStartup::new(|_, stream| stream.is_encrypted().then(|| refused("28000")));
    within("a session", hosts(&twice, "sslmode=prefer").open_with(&not_by_tls)).await.unwrap();
    let seen = not_by_tls.seen();
    assert!(seen.len() == 2 && seen[0].ends_with("TLS") && seen[1].ends_with("plain"), "{seen:?}");

    struct NeverStarts;
    impl PostgresStartup for NeverStarts {
        type Session = ();

        async fn start(&self, _: PostgresStream, _: &PostgresStartupParams<'_>) -> Result<(), PostgresError> {
            std::future::pending().await
        }
    }
    let error = within("an error", hosts(&twice[..1], "connect_timeout=1").open_with(&NeverStarts)).await;
    assert!(error.unwrap_err().to_string().contains("no answer within 1s while authenticating"));
}
