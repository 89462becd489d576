//! Sample data: orders that are created and change their status: placed, paid, packed, shipped,
//! delivered.
//!
//! Invariant: about two changes a second, and at most [`MAX_ORDERS`] orders: the oldest are
//! deleted.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::{Client, Config, Error, NoTls};
use tokio::net::TcpStream;
use tokio::time::interval;
use tracing::warn;

/// Number of orders at the start.
const INITIAL_ORDERS: i32 = 12;
/// Maximum number of orders.
const MAX_ORDERS: i64 = 40;
/// Interval of changes.
const INTERVAL: Duration = Duration::from_millis(500);
/// Status changes for each new order. A delivery takes four, so open orders do not pile up.
const CHANGES_PER_ORDER: u32 = 4;

const CREATE_TABLES: &str = include_str!("sample.sql");
const INSERT_ORDER: &str = "INSERT INTO orders (customer, product, quantity, total) \
    SELECT customer.name, product.name, quantity, quantity * product.price \
    FROM (SELECT name FROM customers ORDER BY random() LIMIT 1) customer, \
        (SELECT name, price FROM products ORDER BY random() LIMIT 1) product, \
        (SELECT 1 + floor(random() * 3)::int AS quantity) quantity";
const ADVANCE_ORDER: &str = "UPDATE orders SET changed_at = now(), status = CASE status WHEN 'placed' THEN 'paid' \
    WHEN 'paid' THEN 'packed' WHEN 'packed' THEN 'shipped' ELSE 'delivered' END \
    WHERE id = (SELECT id FROM orders WHERE status <> 'delivered' ORDER BY random() LIMIT 1)";
const DELETE_OLDEST: &str =
    "DELETE FROM orders WHERE id <= (SELECT id FROM orders ORDER BY id DESC OFFSET $1 LIMIT 1)";

/// Why the sample data can't be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The database can't be reached.
    #[error("can't connect to the database: {0}")]
    Connect(#[from] std::io::Error),
    /// The database refused a statement.
    #[error("the database refused a statement: {0}")]
    Refused(#[from] Error),
}

/// Connection that changes orders.
pub(super) struct OrderGenerator {
    client: Client,
}

impl OrderGenerator {
    /// Creates the tables and the first orders.
    pub(super) async fn create(address: SocketAddr, database: &str) -> Result<Self, SampleError> {
        let socket = TcpStream::connect(address).await?;
        let (client, connection) =
            Config::new().user("postgres").dbname(database).connect_raw(socket, NoTls).await?;
        // The connection task ends with the client, which gets its errors.
        tokio::spawn(async { drop(connection.await) });
        client.batch_execute(CREATE_TABLES).await?;
        let sample = OrderGenerator { client };
        for _ in 0..INITIAL_ORDERS {
            sample.client.execute(INSERT_ORDER, &[]).await?;
            sample.client.execute(ADVANCE_ORDER, &[]).await?;
        }
        Ok(sample)
    }

    /// Changes orders until the future is dropped or a statement fails.
    pub(super) async fn run(self) {
        let mut ticks = interval(INTERVAL);
        for tick in 0_u32.. {
            ticks.tick().await;
            if let Err(error) = self.change(tick).await {
                warn!(%error, "sample data generator stopped");
                return;
            }
        }
    }

    async fn change(&self, tick: u32) -> Result<(), Error> {
        if tick.is_multiple_of(CHANGES_PER_ORDER) {
            self.client.execute(INSERT_ORDER, &[]).await?;
            self.client.execute(DELETE_OLDEST, &[&MAX_ORDERS]).await?;
        }
        self.client.execute(ADVANCE_ORDER, &[]).await.map(drop)
    }
}
