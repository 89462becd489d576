//! Sessions of another protocol, started on what was dialed for them.

use std::io;
use std::sync::Mutex;

use forebay_reservoir::{
    ChannelBinding, PostgresConnect, PostgresError, PostgresStart, PostgresStream, PostgresTerms, ServerError,
};
use forebay_testkit::sandbox::{Postgres, free_port};
use forebay_testkit::within;

/// Ends as told, and remembers on what it was started.
struct Played {
    ends: fn(usize, &PostgresStream) -> Option<PostgresError>,
    seen: Mutex<Vec<String>>,
}

impl Played {
    fn new(ends: fn(usize, &PostgresStream) -> Option<PostgresError>) -> Self {
        Played { ends, seen: Mutex::default() }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl PostgresStart for Played {
    type Session = PostgresStream;

    async fn start(
        &self,
        stream: PostgresStream,
        terms: &PostgresTerms<'_>,
    ) -> Result<PostgresStream, PostgresError> {
        let encrypted = if stream.is_encrypted() { "TLS" } else { "plain" };
        let (database, options) = (terms.database(), terms.options());
        let mut seen = self.seen.lock().unwrap();
        seen.push(format!("{} {database:?} {options:?} {:?} {encrypted}", terms.user(), terms.password()));
        (self.ends)(seen.len(), &stream).map_or(Ok(stream), Err)
    }
}

fn refused(sqlstate: &str) -> PostgresError {
    let said = ServerError::from_fields([(b'V', &b"FATAL"[..]), (b'C', sqlstate.as_bytes())]);
    PostgresError::Server { address: "somewhere".to_owned(), said }
}

fn hosts(ports: &[u16], rest: &str) -> PostgresConnect {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    PostgresConnect::new(&format!("postgres://me:pw@{}/db?{rest}", hosts.join(","))).unwrap()
}

#[tokio::test]
async fn a_session_is_started_on_the_terms_of_the_string() {
    let postgres = Postgres::builder().tls().start().unwrap();
    let played = Played::new(|_, _| None);
    let connect = hosts(&[free_port(), postgres.port()], "options=-c%20a%3Db&channel_binding=disable");
    let stream = within("a session", connect.open_with(&played)).await.unwrap();
    assert_eq!(played.seen(), ["me Some(\"db\") Some(\"-c a=b\") Some(\"pw\") TLS"]);
    assert_eq!(stream.tls_server_end_point().unwrap().len(), 32);
    stream.set_receive_low_water(64 * 1024).unwrap();
    stream.set_receive_low_water(1).unwrap();
    within("the server hangs up, too", stream.hang_up()).await;

    let socket = postgres.socket_dir().to_str().unwrap();
    let words = format!("user=me host={socket} port={} channel_binding=prefer", postgres.port());
    let unix = PostgresConnect::new(&words).unwrap();
    let stream = within("a session", unix.open_with(&played)).await.unwrap();
    assert_eq!(played.seen()[1], "me None None None plain");
    assert_eq!(stream.tls_server_end_point(), None);
    let error = stream.set_receive_low_water(2).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert_ne!(ChannelBinding::Prefer, ChannelBinding::Require);
}

#[tokio::test]
async fn its_errors_decide_about_the_next_try_as_a_connections_do() {
    let postgres = Postgres::builder().tls().start().unwrap();
    let twice = [postgres.port(), postgres.port()];
    let starting = Played::new(|number, _| (number == 1).then(|| refused("57P03")));
    within("a session", hosts(&twice, "").open_with(&starting)).await.unwrap();
    assert_eq!(starting.seen().len(), 2, "a server that is only starting is passed over");

    let no = Played::new(|_, _| Some(refused("28P01")));
    let error = within("an error", hosts(&twice, "").open_with(&no)).await.unwrap_err();
    assert!(matches!(&error, PostgresError::Server { said, .. } if said.code() == "28P01"), "{error}");
    assert_eq!(no.seen().len(), 1, "a clear no is the end");

    let not_by_tls = Played::new(|_, stream| stream.is_encrypted().then(|| refused("28000")));
    within("a session", hosts(&twice, "sslmode=prefer").open_with(&not_by_tls)).await.unwrap();
    let seen = not_by_tls.seen();
    assert!(seen.len() == 2 && seen[0].ends_with("TLS") && seen[1].ends_with("plain"), "{seen:?}");

    struct Never;
    impl PostgresStart for Never {
        type Session = ();

        async fn start(&self, _: PostgresStream, _: &PostgresTerms<'_>) -> Result<(), PostgresError> {
            std::future::pending().await
        }
    }
    let error = within("an error", hosts(&twice[..1], "connect_timeout=1").open_with(&Never)).await;
    assert!(error.unwrap_err().to_string().contains("no answer within 1s while authenticating"));
}
