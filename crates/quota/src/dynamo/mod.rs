//! `DynamoStore`: keeps the counts in DynamoDB with conditional writes.
//!
//! Invariant: a share grows only by a transaction that also checks two conditions. The member is
//! known, wasn't replaced, and has begun no later settlement; and the account is as it was read. A
//! writer that loses such a race reads and tries again: a conflict is never taken for a full limit.
//! DynamoDB has no clock for conditions, and the clocks of two machines can't be compared. So a
//! member is alive while its heartbeat counter changes, measured by each handle on its own
//! monotonic clock (`liveness.rs`). A conditional delete removes it: if it sends a heartbeat in
//! between, the delete fails.
//! DynamoDB's own expiry (the attribute `ttl`) only removes unused items days later; nothing
//! depends on it.
//!
//! | partition key | sort key | content |
//! |---|---|---|
//! | `namespace#NAME` | `generation` | the generation, and whether it is being rebuilt |
//! | `namespace#NAME` | `member#ID` | a member: generation, heartbeats, TTL, sequence, replaced |
//! | `account#ACCOUNT` | `in#NAME` | the shares of one account |
//! | `bucket#BUCKET` | `in#NAME` | a token bucket |

mod account_settlement;
mod draw;
mod items;
mod liveness;
mod members;
mod outcome;
mod retry_backoff;
mod settle;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::BehaviorVersion;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use parking_lot::Mutex;

use crate::random_id::random_id;
use crate::store::{
    Heartbeat, HeartbeatReply, Holdings, MemberId, Settlement, SettlementReply, Store, StoreError,
    StoreFuture, TokenReply, TokenRequest,
};
use liveness::LivenessTracker;

type AttributeMap = HashMap<String, AttributeValue>;

/// Keeps the counts in a DynamoDB table. Several namespaces can share a table.
///
/// A handle expires a member only after it has watched it for one TTL: create one handle per
/// process, and keep it. Conflicts are retried within a call, so set the member's `call_timeout` to
/// a second or more.
///
/// A heartbeat costs a query of the namespace and an update. A settlement costs a batch read, a
/// query, and a transaction of its accounts and its member. It needs the permissions GetItem,
/// BatchGetItem, Query, PutItem, UpdateItem, DeleteItem and ConditionCheckItem.
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
///     .credentials_provider(Credentials::new("key", "secret", None, None, "example"));
/// let client = Client::from_conf(config.build());
/// let store = DynamoStore::create_table(client, "quota", "production").await?;
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
    stamps: StampGenerator,
    /// Lost observations after a panic only make this handle wait longer, which is safe.
    liveness: Mutex<LivenessTracker>,
    /// Serializes writes to our own member's item: a concurrent heartbeat and settlement would
    /// cancel each other.
    own_item_lock: tokio::sync::Mutex<()>,
}

impl DynamoStore {
    /// Creates a store in `namespace`. Members of one namespace share their counts.
    /// The table must exist, with the string keys `pk` and `sk`; see [`DynamoStore::create_table`].
    pub fn new(client: Client, table: impl Into<String>, namespace: impl Into<String>) -> Self {
        DynamoStore {
            client,
            table: table.into(),
            namespace: namespace.into(),
            stamps: StampGenerator::new(),
            liveness: Mutex::default(),
            own_item_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Creates a store, and its table if that is missing. The table is billed on demand and expires
    /// items by `ttl`. Waits until the table is active.
    ///
    /// # Errors
    /// Fails if DynamoDB returns an error, or if the table isn't active in time.
    pub async fn create_table(
        client: Client,
        table: impl Into<String>,
        namespace: impl Into<String>,
    ) -> Result<Self, StoreError> {
        let store = DynamoStore::new(client, table, namespace);
        table::create(&store.client, &store.table).await?;
        Ok(store)
    }

    /// Returns the base of a client configuration: TLS by rustls on ring, and short retries. Add a
    /// region and credentials, and an endpoint for servers other than AWS.
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
}

impl Store for DynamoStore {
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        Box::pin(self.run_heartbeat(heartbeat))
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        Box::pin(self.run_settle(settlement))
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        Box::pin(self.run_leave(member))
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        Box::pin(self.run_draw(draw))
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        Box::pin(self.run_query_holdings(accounts))
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

/// Generates stamps that no two writes share. A counter in the item would restart when the item is
/// deleted.
#[derive(Debug)]
struct StampGenerator {
    handle: u64,
    next: AtomicU64,
}

impl StampGenerator {
    fn new() -> Self {
        StampGenerator { handle: random_id(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        format!("{:016x}-{}", self.handle, self.next.fetch_add(1, Ordering::Relaxed))
    }
}
