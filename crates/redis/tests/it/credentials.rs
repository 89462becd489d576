//! Credentials that change: providers and password files.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_redis::{
    Config, ConnectionLoss, CredentialsError, CredentialsFuture, CredentialsProvider, ExecError, RedisClient,
    RedisConnectError, RedisCredentials, RedisPasswordFile, RequestError, State,
};
use forebay_sandbox::Redis;

use super::support::*;

const FIRST: &str = "hunter2-first";
const SECOND: &str = "hunter2-second";

/// A provider whose credentials the test changes.
struct Rotating {
    username: Option<&'static str>,
    password: Mutex<Result<String, &'static str>>,
    calls: AtomicU32,
}

impl Rotating {
    fn new(username: Option<&'static str>, password: Result<&str, &'static str>) -> Arc<Rotating> {
        let password = Mutex::new(password.map(str::to_owned));
        Arc::new(Rotating { username, password, calls: AtomicU32::new(0) })
    }

    fn set(&self, password: Result<&str, &'static str>) {
        *self.password.lock().unwrap() = password.map(str::to_owned);
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl CredentialsProvider for Rotating {
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(async {
            self.calls.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            let password = self.password.lock().unwrap().clone().map_err(CredentialsError::new)?;
            let credentials = RedisCredentials::new(password);
            Ok(match self.username {
                Some(username) => credentials.username(username),
                None => credentials,
            })
        })
    }
}

fn provided(config: Config, provider: Arc<impl CredentialsProvider>) -> Config {
    with(config, |config| config.credentials = Some(provider))
}

#[tokio::test]
async fn a_reconnection_uses_the_current_password() {
    for (username, rotate) in [
        (None, &["CONFIG", "SET", "requirepass", SECOND][..]),
        (Some("ada"), &["ACL", "SETUSER", "ada", "resetpass", ">hunter2-second"][..]),
    ] {
        for protocol in [2, 3] {
            let redis = Redis::builder()
                .password(FIRST)
                .acl_user("ada", &format!("on >{FIRST} ~* &* +@all"))
                .start()
                .unwrap();
            let admin = connect(format!("redis://:{FIRST}@{}", redis.addr())).await;
            let provider = Rotating::new(username, Ok(FIRST));
            let url = format!("redis://{}?protocol={protocol}", redis.addr());
            let client = connect(provided(fast_reconnect(&*url), provider.clone())).await;
            assert_eq!(provider.calls(), 1);
            admin.exec::<()>((rotate,)).await.unwrap();
            client.exec::<()>(("PING",)).await.unwrap();
            provider.set(Ok(SECOND));

            let mut changes = status_from_now(&client).await;
            kill_connection(&admin, client_id(&client).await).await;
            wait_for_reconnect(&mut changes).await;
            let who: String = client.exec(("ACL", "WHOAMI")).await.unwrap();
            assert_eq!((who.as_str(), provider.calls()), (username.unwrap_or("default"), 2));
            // Connections beside the shared one are logged in, too.
            client.dedicated().await.unwrap().exec::<()>(("PING",)).await.unwrap();
            let _news = client.subscribe("news").await.unwrap();
            assert_eq!(provider.calls(), if protocol == 2 { 4 } else { 3 });
        }
    }
}

/// A file that is deleted at the end.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new(name: &str, content: impl AsRef<[u8]>) -> SecretFile {
        let path = std::env::temp_dir().join(format!("forebay-redis-{name}-{}", std::process::id()));
        let file = SecretFile(path);
        file.replace(content);
        file
    }

    /// Renames a new file over this one, as those who rotate passwords do.
    fn replace(&self, content: impl AsRef<[u8]>) {
        let new = self.0.with_extension("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, &self.0).unwrap();
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[tokio::test]
async fn a_password_file_that_is_rewritten_is_read_at_the_next_attempt() {
    let redis = Redis::builder().acl_user("ada", &format!("on >{FIRST} ~* &* +@all")).start().unwrap();
    let admin = connect(redis.url()).await;
    let file = SecretFile::new("rewritten", format!("{FIRST}\n"));
    let url = format!("redis://ada:of-the-url@{}", redis.addr());
    let client = connect(provided(fast_reconnect(&*url), Arc::new(RedisPasswordFile::new(&file.0)))).await;
    admin.exec::<()>(("ACL", "SETUSER", "ada", "resetpass", format!(">{SECOND}"))).await.unwrap();

    // Until the file has the new password, attempts fail.
    let mut changes = status_from_now(&client).await;
    kill_connection(&admin, client_id(&client).await).await;
    let refused = within("a refused login", async {
        loop {
            if let Some(ConnectionLoss::Connect(error)) = changes.next().await.last_error {
                return error;
            }
        }
    })
    .await;
    assert!(matches!(&*refused, RedisConnectError::Auth(_)), "{refused:?}");
    file.replace(SECOND);
    wait_for_state(&mut changes, State::Open).await;
    assert_eq!(client.exec::<String>(("ACL", "WHOAMI")).await.unwrap(), "ada");
}

#[tokio::test]
async fn a_password_file_that_cannot_be_used_says_why_without_its_content() {
    let redis = start();
    let long = SecretFile::new("long", "hunter2".repeat(10_000));
    let [empty, newline] =
        ["", "\r\n"].map(|content| SecretFile::new(&format!("empty{}", content.len()), content));
    let binary = SecretFile::new("binary", b"hunter2\xff");
    for (path, why) in [
        (PathBuf::from("/nowhere/password"), "No such file"),
        (std::env::temp_dir(), "it isn't a regular file"),
        (empty.0.clone(), "it is empty"),
        (newline.0.clone(), "it is empty"),
        (long.0.clone(), "it is longer than 65536 bytes"),
        (binary.0.clone(), "it isn't UTF-8"),
    ] {
        let config = provided(config(redis.url()), Arc::new(RedisPasswordFile::new(&path)));
        let error = within("an error", RedisClient::connect(config)).await.unwrap_err();
        assert!(matches!(error, RedisConnectError::Credentials { .. }), "{error:?}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(why) && !shown.contains("hunter2"), "{shown}");
        for part in [path.to_str().unwrap(), &redis.addr().to_string(), "next attempt"] {
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
    }
}

#[tokio::test]
async fn a_provider_that_fails_is_called_again_at_the_next_attempt() {
    let redis = Redis::builder().password(FIRST).start().unwrap();
    let provider = Rotating::new(None, Err("the token service is down"));
    let error =
        RedisClient::connect(provided(fast_reconnect(redis.url()), provider.clone())).await.unwrap_err();
    assert!(error.to_string().contains("the token service is down"), "{error}");
    assert_eq!(provider.calls(), 1, "a failed first attempt is not repeated");

    let client = RedisClient::open(provided(fast_reconnect(redis.url()), provider.clone())).unwrap();
    let mut changes = client.status_changes();
    let failed = wait_for_state(&mut changes, State::Failed).await;
    let Some(ConnectionLoss::Connect(error)) = failed.last_error else { panic!("{:?}", failed.last_error) };
    assert!(matches!(&*error, RedisConnectError::Credentials { .. }), "{error:?}");
    assert!(failed.retry_at.is_some());
    eventually("it is called again and again", true, async || provider.calls() > 4).await;
    provider.set(Ok(FIRST));
    wait_for_state(&mut changes, State::Open).await;
    client.exec::<()>(("PING",)).await.unwrap();
}

/// A provider that never returns credentials.
enum Broken {
    Hangs,
    Panics,
    Blocks(Mutex<std::sync::mpsc::Receiver<()>>),
}

impl CredentialsProvider for Broken {
    fn credentials(&self) -> CredentialsFuture<'_> {
        match self {
            Broken::Hangs => Box::pin(std::future::pending()),
            Broken::Panics => panic!("this one is meant: {FIRST}"),
            Broken::Blocks(release) => {
                release.lock().unwrap().recv_timeout(TEST_TIMEOUT).unwrap();
                Box::pin(std::future::pending())
            }
        }
    }
}

#[tokio::test]
async fn a_provider_that_hangs_or_panics_fails_the_attempt() {
    let redis = start();
    let short = with(config(redis.url()), |config| config.connect_timeout = Duration::from_millis(100));
    let error =
        within("an error", RedisClient::connect(provided(short, Arc::new(Broken::Hangs)))).await.unwrap_err();
    let RedisConnectError::Timeout { step, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*step, "the provider of the credentials");
    let panics = provided(config(redis.url()), Arc::new(Broken::Panics));
    let error = within("an error", RedisClient::connect(panics)).await.unwrap_err();
    assert!(error.to_string().contains("the provider panicked"), "{error}");
    assert!(!format!("{error} {error:?}").contains(FIRST), "{error:?}");
}

#[test]
fn a_provider_that_blocks_does_not_stop_the_worker() {
    let redis = start();
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (free, release) = std::sync::mpsc::sync_channel(1);
    let blocks = Arc::new(Broken::Blocks(Mutex::new(release)));
    let client = {
        let _inside = home.enter();
        RedisClient::open(provided(config(redis.url()), blocks)).unwrap()
    };
    let error = block_on(client.exec::<()>(("PING",)).within(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(error, ExecError::Request(RequestError::Deadline { .. })), "{error:?}");
    client.abort();
    block_on(client.status_changes().wait_for(State::Closed));
    free.send(()).unwrap();
}

#[tokio::test]
async fn logs_and_debug_output_hold_no_password_of_a_provider() {
    let log = LogBuffer::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let redis = Redis::builder().password(SECOND).start().unwrap();
    let provider = Rotating::new(Some("default"), Ok(FIRST));
    let config = provided(fast_reconnect(redis.url()), provider.clone());
    let shown = format!("{config:?} {:?}", provider.credentials().await.unwrap());
    let client = RedisClient::open(config).unwrap();
    let mut changes = client.status_changes();
    wait_for_state(&mut changes, State::Failed).await;
    provider.set(Ok(SECOND));
    wait_for_state(&mut changes, State::Open).await;
    client.close().await;
    let all = format!("{shown} {}", log.text());
    assert!(all.contains("link changed state") && all.contains("authentication failed"), "{all}");
    assert!(!all.contains("hunter2"), "{all}");
}
