//! Verifier of IAM tokens, as RDS and Aurora DSQL have one: it signs the token again, and compares.
//!
//! A real Postgres requests the password as plain text over TLS, and asks this verifier by LDAP
//! (`ldap` in pg_hba.conf). So the program logs in as on RDS, on all of its connections.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::config::Credentials;
use forebay_replication::reservoir::{DsqlToken, RdsToken};
use parking_lot::Mutex;

/// Validity of a token.
const EXPIRES_SECS: u64 = 15 * 60;
/// Result codes of LDAP.
const SUCCESS: u8 = 0;
const INVALID_CREDENTIALS: u8 = 49;

/// What the tokens must be for.
#[derive(Debug, Clone)]
pub(super) enum ExpectedToken {
    Rds { host: String, port: u16, region: String },
    Dsql { host: String, region: String },
}

impl ExpectedToken {
    /// Returns the token that the user's program signs at this time.
    fn sign(&self, user: &str, credentials: &Credentials, time: SystemTime) -> String {
        let secret = match self {
            ExpectedToken::Rds { host, port, region } => {
                RdsToken::new(host, *port, region, user).presign(credentials, time)
            }
            ExpectedToken::Dsql { host, region } => {
                let token = DsqlToken::new(host, region);
                let token = if user == "admin" { token.admin() } else { token };
                token.presign(credentials, time)
            }
        };
        secret.unwrap().reveal().to_owned()
    }
}

/// A login that the verifier was asked about.
#[derive(Debug, Clone)]
pub(super) struct TokenLogin {
    pub(super) user: String,
    pub(super) token: String,
    pub(super) is_valid: bool,
}

#[derive(Debug)]
struct VerifierState {
    credentials: Credentials,
    expected: Mutex<Option<ExpectedToken>>,
    logins: Mutex<Vec<TokenLogin>>,
}

/// A verifier on a free port of 127.0.0.1. Its threads end with the process.
#[derive(Debug)]
pub(super) struct TokenVerifier {
    port: u16,
    state: Arc<VerifierState>,
}

impl TokenVerifier {
    /// Starts a verifier that refuses all tokens until [`expect`](Self::expect) is called.
    pub(super) fn start(credentials: Credentials) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (expected, logins) = (Mutex::default(), Mutex::default());
        let state = Arc::new(VerifierState { credentials, expected, logins });
        let of_thread = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream?, of_thread.clone());
                thread::spawn(move || drop(state.answer(stream)));
            }
            Ok::<(), io::Error>(())
        });
        TokenVerifier { port, state }
    }

    /// Returns the line of pg_hba.conf for this user.
    pub(super) fn hba_line(&self, user: &str) -> String {
        let port = self.port;
        format!(
            "hostssl all {user} 127.0.0.1/32 ldap ldapserver=127.0.0.1 ldapport={port} ldapprefix=\"cn=\""
        )
    }

    /// Sets what tokens must be for.
    pub(super) fn expect(&self, expected: ExpectedToken) {
        *self.state.expected.lock() = Some(expected);
    }

    /// Returns the logins since the last call.
    pub(super) fn take_logins(&self) -> Vec<TokenLogin> {
        std::mem::take(&mut *self.state.logins.lock())
    }
}

impl VerifierState {
    /// Answers the bind request of one connection.
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        let (_, message) = read_element(&mut stream)?;
        let mut message = &message[..];
        let ((_, id), (_, bind)) = (read_element(&mut message)?, read_element(&mut message)?);
        let mut bind = &bind[..];
        let (_version, (_, name), (_, password)) =
            (read_element(&mut bind)?, read_element(&mut bind)?, read_element(&mut bind)?);
        let code = self.verify(&String::from_utf8_lossy(&name), &String::from_utf8_lossy(&password));
        let (mut content, mut response) = (Vec::new(), Vec::new());
        write_element(0x02, &id, &mut content);
        write_element(0x61, &[0x0a, 1, code, 4, 0, 4, 0], &mut content);
        write_element(0x30, &content, &mut response);
        stream.write_all(&response)?;
        // The client unbinds and closes.
        io::copy(&mut stream, &mut io::sink()).map(drop)
    }

    fn verify(&self, name: &str, token: &str) -> u8 {
        let user = name.strip_prefix("cn=").unwrap_or(name);
        #[expect(clippy::disallowed_methods, reason = "a signature is of a date")]
        let now = SystemTime::now();
        let expected = self.expected.lock().clone();
        // The token names the second in which it was signed, so each second has another one.
        let is_valid = expected.is_some_and(|expected| {
            let signed = |age| expected.sign(user, &self.credentials, now - Duration::from_secs(age));
            (0..EXPIRES_SECS).any(|age| signed(age) == token)
        });
        self.logins.lock().push(TokenLogin { user: user.to_owned(), token: token.to_owned(), is_valid });
        if is_valid { SUCCESS } else { INVALID_CREDENTIALS }
    }
}

/// Reads an element of BER: its tag and content.
fn read_element(input: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    input.read_exact(&mut head)?;
    let [tag, first] = head;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let mut bytes = vec![0; usize::from(first & 0x7f)];
        input.read_exact(&mut bytes)?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    }
    let mut content = vec![0; length];
    input.read_exact(&mut content)?;
    Ok((tag, content))
}

/// Writes an element of at most 127 bytes.
fn write_element(tag: u8, content: &[u8], output: &mut Vec<u8>) {
    output.extend([tag, u8::try_from(content.len()).unwrap()]);
    output.extend(content);
}
