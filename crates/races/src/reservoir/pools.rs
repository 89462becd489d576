//! The contestants.

use std::time::Duration;

use anyhow::{Context, Result};
use forebay_quota::RateConfig;
use forebay_reservoir::{
    ConnectionGuard, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, Reset,
};
use tokio_postgres::NoTls;

use super::Terms;

/// A pool: all do the same with it.
pub(crate) trait Pool: Clone + Send + Sync + 'static {
    type Lent: Send;

    /// One that is full.
    fn open(terms: &Terms) -> impl Future<Output = Result<Self>>;
    fn take(&self) -> impl Future<Output = Result<Self::Lent>> + Send;
    /// The smallest query there is.
    fn query(lent: &mut Self::Lent) -> impl Future<Output = Result<()>> + Send;
}

/// How long a caller may wait: longer than any here has to.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Ours(Reservoir<PostgresClient>);

impl Pool for Ours {
    type Lent = ConnectionGuard<PostgresClient>;

    async fn open(terms: &Terms) -> Result<Self> {
        let mut config = ReservoirConfig::new(terms.connections).low_watermark(terms.connections);
        if !terms.reset {
            config = config.reset(Reset::None);
        }
        if let Some(lifetime) = terms.lifetime {
            // As long on average as the others', spread by a third.
            let window = lifetime / 12;
            config = config
                .base_lifetime(lifetime * 5 / 6)
                .lifetime_jitter(lifetime / 3)
                .guard_window(window)
                .replace_ahead(lifetime / 4);
        }
        let rate = RateConfig::per_second(terms.opens_per_second).burst(terms.connections);
        let limits = ConnectionLimits::local().rate(rate);
        let reservoir = Reservoir::start(PostgresConnect::new(&terms.url)?, config, limits)?;
        reservoir.initial_fill(PATIENCE).await?;
        Ok(Ours(reservoir))
    }

    async fn take(&self) -> Result<Self::Lent> {
        Ok(self.0.checkout_within(PATIENCE).await?)
    }

    async fn query(lent: &mut Self::Lent) -> Result<()> {
        lent.simple_query("SELECT 1").await?;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Deadpool(deadpool_postgres::Pool);

impl Pool for Deadpool {
    type Lent = deadpool_postgres::Object;

    async fn open(terms: &Terms) -> Result<Self> {
        use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, RecyclingMethod};
        let recycling_method = if terms.reset { RecyclingMethod::Clean } else { RecyclingMethod::Fast };
        let config = ManagerConfig { recycling_method };
        let manager = Manager::from_config(terms.url.parse()?, NoTls, config);
        let mut builder = deadpool_postgres::Pool::builder(manager).max_size(terms.connections as usize);
        if let Some(lifetime) = terms.lifetime {
            builder = builder.pre_recycle(Hook::sync_fn(move |_, metrics| {
                if metrics.created.elapsed() < lifetime { Ok(()) } else { Err(HookError::message("too old")) }
            }));
        }
        let pool = Deadpool(builder.build().context("a pool")?);
        fill(&pool, terms).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Lent> {
        Ok(self.0.get().await?)
    }

    async fn query(lent: &mut Self::Lent) -> Result<()> {
        lent.simple_query("SELECT 1").await?;
        Ok(())
    }
}

type Bb8Manager = bb8_postgres::PostgresConnectionManager<NoTls>;

#[derive(Clone)]
pub(crate) struct Bb8(bb8::Pool<Bb8Manager>);

impl Pool for Bb8 {
    type Lent = bb8::PooledConnection<'static, Bb8Manager>;

    async fn open(terms: &Terms) -> Result<Self> {
        let manager = Bb8Manager::new_from_stringlike(&terms.url, NoTls)?;
        let pool = bb8::Pool::builder()
            .max_size(terms.connections)
            .min_idle(terms.connections)
            .max_lifetime(terms.lifetime)
            .reaper_rate(Duration::from_millis(100))
            .idle_timeout(None)
            .connection_timeout(PATIENCE)
            // The others ask no server either.
            .test_on_check_out(false)
            .build(manager)
            .await?;
        let pool = Bb8(pool);
        fill(&pool, terms).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Lent> {
        Ok(self.0.get_owned().await?)
    }

    async fn query(lent: &mut Self::Lent) -> Result<()> {
        lent.simple_query("SELECT 1").await?;
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Sqlx(sqlx::PgPool);

impl Pool for Sqlx {
    type Lent = sqlx::pool::PoolConnection<sqlx::Postgres>;

    async fn open(terms: &Terms) -> Result<Self> {
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(terms.connections)
            .min_connections(terms.connections)
            .max_lifetime(terms.lifetime)
            .idle_timeout(None)
            .acquire_timeout(PATIENCE)
            .test_before_acquire(false)
            .connect(&terms.url)
            .await?;
        let pool = Sqlx(pool);
        fill(&pool, terms).await?;
        Ok(pool)
    }

    async fn take(&self) -> Result<Self::Lent> {
        Ok(self.0.acquire().await?)
    }

    async fn query(lent: &mut Self::Lent) -> Result<()> {
        use sqlx::Executor;
        lent.execute(sqlx::raw_sql("SELECT 1")).await?;
        Ok(())
    }
}

/// Opens all connections of a pool that opens them when they are asked for.
async fn fill(pool: &impl Pool, terms: &Terms) -> Result<()> {
    let mut lent = Vec::new();
    for _ in 0..terms.connections {
        lent.push(pool.take().await?);
    }
    drop(lent);
    // sqlx gives connections back in tasks of their own.
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}
