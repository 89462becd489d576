//! Orders that come in and move on: placed, paid, packed, shipped, delivered.
//!
//! Invariant: about two changes a second, and at most [`MOST`] orders: the oldest go.

use std::net::SocketAddr;
use std::time::Duration;

use forebay_replication::reservoir::tokio_postgres::{Client, Config, Error, NoTls};
use tokio::net::TcpStream;
use tokio::time::interval;
use tracing::warn;

/// How many orders there are from the start.
const FIRST: i32 = 12;
/// And at most.
const MOST: i64 = 40;
/// How often something happens.
const EACH: Duration = Duration::from_millis(500);
/// So many moves for each order that comes in: it takes four to be delivered, and some more keep the board from filling up.
const MOVES: u32 = 4;

const TABLES: &str = include_str!("sample.sql");
const ORDER: &str = "INSERT INTO orders (customer, product, quantity, total) \
    SELECT customer.name, product.name, quantity, quantity * product.price \
    FROM (SELECT name FROM customers ORDER BY random() LIMIT 1) customer, \
        (SELECT name, price FROM products ORDER BY random() LIMIT 1) product, \
        (SELECT 1 + floor(random() * 3)::int AS quantity) quantity";
const MOVE: &str = "UPDATE orders SET changed_at = now(), status = CASE status WHEN 'placed' THEN 'paid' \
    WHEN 'paid' THEN 'packed' WHEN 'packed' THEN 'shipped' ELSE 'delivered' END \
    WHERE id = (SELECT id FROM orders WHERE status <> 'delivered' ORDER BY random() LIMIT 1)";
const TIDY: &str =
    "DELETE FROM orders WHERE id <= (SELECT id FROM orders ORDER BY id DESC OFFSET $1 LIMIT 1)";

/// Why there is no sample.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The database can't be reached.
    #[error("the database can't be reached: {0}")]
    Connect(#[from] std::io::Error),
    /// It doesn't take it.
    #[error("the database refused: {0}")]
    Refused(#[from] Error),
}

/// A connection that changes orders.
pub(super) struct Sample {
    client: Client,
}

impl Sample {
    /// Makes the tables, and the first orders.
    pub(super) async fn make(address: SocketAddr, database: &str) -> Result<Self, SampleError> {
        let socket = TcpStream::connect(address).await?;
        let (client, connection) =
            Config::new().user("postgres").dbname(database).connect_raw(socket, NoTls).await?;
        // It ends with the client; what went wrong, the client is told.
        tokio::spawn(async { drop(connection.await) });
        client.batch_execute(TABLES).await?;
        let sample = Sample { client };
        for _ in 0..FIRST {
            sample.client.execute(ORDER, &[]).await?;
            sample.client.execute(MOVE, &[]).await?;
        }
        Ok(sample)
    }

    /// Until it is dropped, or the database is gone.
    pub(super) async fn live(self) {
        let mut ticks = interval(EACH);
        for tick in 0_u32.. {
            ticks.tick().await;
            if let Err(error) = self.change(tick).await {
                warn!(%error, "the sample stands still");
                return;
            }
        }
    }

    async fn change(&self, tick: u32) -> Result<(), Error> {
        if tick.is_multiple_of(MOVES) {
            self.client.execute(ORDER, &[]).await?;
            self.client.execute(TIDY, &[&MOST]).await?;
        }
        self.client.execute(MOVE, &[]).await.map(drop)
    }
}
