//! Contestants: four pools with the same operations.

use std::time::Duration;

use anyhow::{Context, Result};
use forebay_quota::RateConfig;
use forebay_reservoir::{
    ConnectionGuard, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, Reset,
};
use tokio_postgres::NoTls;

use super::PoolSettings;

/// Operations of a connection pool.
pub(crate) trait ContestantPool: Clone + Send + Sync + 'static {
    type Connection: Send;

    /// Opens a pool with all of its connections.
    fn open(settings: &PoolSettings) -> impl Future<Output = Result<Self>>;
    /// Checks out a connection. Dropping it returns it.
    fn take(&self) -> impl Future<Output = Result<Self::Connection>> + Send;
    /// Runs `SELECT 1`.
    fn query(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;
}

/// Maximum time that a caller waits for a connection. Longer than any wait in this race.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct ForebayPool(Reservoir<PostgresClient>);

impl ContestantPool for ForebayPool {
    type Connection = ConnectionGuard<PostgresClient>;

    async fn open(settings: &PoolSettings) -> Result<Self> {
        let mut config = ReservoirConfig::new(settings.connections).low_watermark(settings.connections);
        if !settings.reset {
            config = config.reset(Reset::None);
        }
        if let Some(lifetime) = settings.lifetime {
            // On average the same lifetime as that of the other pools, with a jitter of a third.
            let window = lifetime / 12;
            config = config
                .base_lifetime(lifetime * 5 / 6)
                .lifetime_jitter(lifetime / 3)
                .guard_window(window)
                .replace_ahead(lifetime / 4);
        }
        let rate = RateConfig::per_second(settings.opens_per_second).burst(settings.connections);
        let limits = ConnectionLimits::local().rate(rate);
        let reservoir = Reservoir::start(PostgresConnect::new(&settings.url)?, config, limits)?;
        reservoir.initial_fill(WAIT_TIMEOUT).await?;
        Ok(ForebayPool(reservoir))
    }

    async fn take(&self) -> Result<Self::Connection> {
        Ok(self.0.checkout_within(WAIT_TIMEOUT).await?)
    }

    async fn query(connection: &mut Self::Connection) -> Result<()> {
        connection.simple_query("SELECT 1").await?;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Deadpool(deadpool_postgres::Pool);

impl ContestantPool for Deadpool {
    type Connection = deadpool_postgres::Object;

    async fn open(settings: &PoolSettings) -> Result<Self> {
        use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, RecyclingMethod};
        let recycling_method = if settings.reset { RecyclingMethod::Clean } else { RecyclingMethod::Fast };
        let config = ManagerConfig { recycling_method };
        let manager = Manager::from_config(settings.url.parse()?, NoTls, config);
        let mut builder = deadpool_postgres::Pool::builder(manager).max_size(settings.connections as usize);
        if let Some(lifetime) = settings.lifetime {
            builder = builder.pre_recycle(Hook::sync_fn(move |_, metrics| {
                if metrics.created.elapsed() < lifetime { Ok(()) } else { Err(HookError::message("too old")) }
            }));
        }
        let pool = Deadpool(builder.build().context("building the pool")?);
        fill(&pool, settings).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Connection> {
        Ok(self.0.get().await?)
    }

    async fn query(connection: &mut Self::Connection) -> Result<()> {
        connection.simple_query("SELECT 1").await?;
        Ok(())
    }
}

type Bb8Manager = bb8_postgres::PostgresConnectionManager<NoTls>;

#[derive(Clone)]
pub(crate) struct Bb8(bb8::Pool<Bb8Manager>);

impl ContestantPool for Bb8 {
    type Connection = bb8::PooledConnection<'static, Bb8Manager>;

    async fn open(settings: &PoolSettings) -> Result<Self> {
        let manager = Bb8Manager::new_from_stringlike(&settings.url, NoTls)?;
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .min_idle(settings.connections)
            .max_lifetime(settings.lifetime)
            .reaper_rate(Duration::from_millis(100))
            .idle_timeout(None)
            .connection_timeout(WAIT_TIMEOUT)
            // The other pools don't test connections either.
            .test_on_check_out(false)
            .build(manager)
            .await?;
        let pool = Bb8(pool);
        fill(&pool, settings).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Connection> {
        Ok(self.0.get_owned().await?)
    }

    async fn query(connection: &mut Self::Connection) -> Result<()> {
        connection.simple_query("SELECT 1").await?;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Sqlx(sqlx::PgPool);

impl ContestantPool for Sqlx {
    type Connection = sqlx::pool::PoolConnection<sqlx::Postgres>;

    async fn open(settings: &PoolSettings) -> Result<Self> {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(settings.connections)
            .min_connections(settings.connections)
            .max_lifetime(settings.lifetime)
            .idle_timeout(None)
            .acquire_timeout(WAIT_TIMEOUT)
            .test_before_acquire(false)
            .connect(&settings.url)
            .await?;
        let pool = Sqlx(pool);
        fill(&pool, settings).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Connection> {
        Ok(self.0.acquire().await?)
    }

    async fn query(connection: &mut Self::Connection) -> Result<()> {
        use sqlx::Executor;
        connection.execute(sqlx::raw_sql("SELECT 1")).await?;
        Ok(())
    }
}

/// Takes all connections at once, so that a pool that opens them on demand opens all.
async fn fill(pool: &impl ContestantPool, settings: &PoolSettings) -> Result<()> {
    let mut connections = Vec::new();
    for _ in 0..settings.connections {
        connections.push(pool.take().await?);
    }
    drop(connections);
    // sqlx returns connections in separate tasks.
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}
