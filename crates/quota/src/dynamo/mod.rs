//! The store in DynamoDB: conditional writes, and life by observation.
//!
//! Invariant: a member's share grows only by a transaction that also checks that this member is still known, wasn't
//! replaced, and has begun no later settlement; and that the account is still as it was read. Whoever loses such a race reads
//! again and tries again: a conflict is never taken for a limit that is reached.
//! DynamoDB has no clock that a condition could use, and no machine's clock counts on another. So a member lives as long as
//! its number of beats changes, as each handle sees it on its own monotonic clock (`watch.rs`), and it dies by one conditional
//! delete: if it beats in between, the delete fails. DynamoDB's own expiry (the attribute `ttl`) only clears away what
//! nobody uses any more, days later; nothing here depends on it.
//!
//! | partition key | sort key | what |
//! |---|---|---|
//! | `namespace#NAME` | `generation` | the generation, and whether it is being rebuilt |
//! | `namespace#NAME` | `member#ID` | a member: its generation, beats, life in ms, sequence, whether it was replaced |
//! | `account#ACCOUNT` | `in#NAME` | the shares of one account |
//! | `bucket#BUCKET` | `in#NAME` | a token bucket |

mod account;
mod draw;
mod fault;
mod items;
mod members;
mod settle;
mod table;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::BehaviorVersion;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

use crate::store::{
    Beat, Calling, Draw, Drawn, Holdings, MemberId, Pulse, Settled, Settlement, Store, StoreError,
};
use watch::Watch;

type Item = HashMap<String, AttributeValue>;

/// Keeps the counts in a DynamoDB table, which many namespaces can share.
///
/// A handle has to watch for one TTL before it believes that a member is gone: give each process one handle, and keep it.
/// DynamoDB answers in milliseconds, and conflicts are retried within a call: a member's `call_timeout` of a second or
/// more suits it.
///
/// A beat costs a query of the namespace and an update; a settlement a batch read, a query, and one transaction of its
/// accounts and its member. It needs the rights to GetItem, BatchGetItem, Query, PutItem, UpdateItem, DeleteItem and
/// ConditionCheckItem.
///
/// ```no_run
/// use std::time::Duration;
///
/// use aws_sdk_dynamodb::Client;
/// use aws_sdk_dynamodb::config::{Credentials, Region};
/// use forebay_quota::{BudgetConfig, DynamoStore, MemberConfig, Quota};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = DynamoStore::client_config()
///     .region(Region::new("eu-central-1"))
///     .credentials_provider(Credentials::new("key", "secret", None, None, "example")); // or aws-config's
/// let store = DynamoStore::create_table(Client::from_conf(config.build()), "quota", "production").await?;
/// let member = MemberConfig::new("web-1").call_timeout(Duration::from_secs(2));
/// let quota = Quota::join(store, member).await;
/// let lease = quota.budget("streams", BudgetConfig::new(10_000)).take().await?;
/// # drop(lease);
/// # Ok(())
/// # }
/// ```
pub struct DynamoStore {
    client: Client,
    table: String,
    namespace: String,
    stamps: Stamps,
    watch: Mutex<Watch>,
    /// Writes to our own member's item, one at a time: a beat and a settlement that meet there would only cancel each other.
    own: tokio::sync::Mutex<()>,
}

impl DynamoStore {
    /// A store in the namespace of this name: members of one namespace share their counts. The table must be there, with the
    /// string keys `pk` and `sk`; see [`DynamoStore::create_table`].
    pub fn new(client: Client, table: impl Into<String>, namespace: impl Into<String>) -> Self {
        DynamoStore {
            client,
            table: table.into(),
            namespace: namespace.into(),
            stamps: Stamps::new(),
            watch: Mutex::default(),
            own: tokio::sync::Mutex::default(),
        }
    }

    /// As [`DynamoStore::new`], but makes the table first if there is none (on demand, with expiry by `ttl`), and waits until
    /// it can be used.
    ///
    /// # Errors
    /// What DynamoDB said, or that the table wasn't ready in time.
    pub async fn create_table(
        client: Client,
        table: impl Into<String>,
        namespace: impl Into<String>,
    ) -> Result<Self, StoreError> {
        let store = DynamoStore::new(client, table, namespace);
        table::create(&store.client, &store.table).await?;
        Ok(store)
    }

    /// The beginning of a client's settings: TLS by rustls on ring, and quick retries. A region and credentials are for you
    /// to add, and an endpoint where it isn't AWS's own.
    pub fn client_config() -> aws_sdk_dynamodb::config::Builder {
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let retry = RetryConfig::standard()
            .with_max_attempts(3)
            .with_initial_backoff(Duration::from_millis(20))
            .with_max_backoff(Duration::from_millis(200));
        aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http)
            .retry_config(retry)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        // What was seen is a hint of the safe kind: whatever a panic left undone only makes us watch for longer.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for DynamoStore {
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        Box::pin(self.run_beat(beat))
    }

    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        Box::pin(self.run_settle(settlement))
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        Box::pin(self.run_leave(member))
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        Box::pin(self.run_draw(draw))
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        Box::pin(self.run_look(accounts))
    }

    fn kind(&self) -> &'static str {
        "dynamodb"
    }
}

impl fmt::Debug for DynamoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("DynamoStore");
        debug.field("table", &self.table).field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Marks that no two writes share. A counter in the item wouldn't do: it begins anew with an item that was deleted.
#[derive(Debug)]
struct Stamps {
    handle: u64,
    next: AtomicU64,
}

impl Stamps {
    fn new() -> Self {
        Stamps { handle: fault::random(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        format!("{:016x}-{}", self.handle, self.next.fetch_add(1, Ordering::Relaxed))
    }
}
