//! Tokens: a bucket in one item, by compare and set.
//!
//! Invariant: the bucket's clock never goes back, and over any span of it at most a burst and the rate's worth of tokens
//! are given (`core/bucket.rs`).
//! DynamoDB tells no time, so each drawer brings its own wall clock, and the bucket believes the latest that it was ever
//! shown. A machine whose clock is ahead moves the bucket's time forward once, by its lead, which fills the bucket at most:
//! one burst too many, however large the lead, and never again, since all others are then behind that time and wait for it.
//! They don't wait for as long as the lead: a handle that has seen a bucket stand still for a while adds that while.

use std::time::Instant;

use super::DynamoStore;
use super::fault::{Pace, Wrote, failed, wrote};
use super::items::{Bucket, Stamped, text, wall};
use crate::core::bucket;
use crate::store::{Draw, Drawn, StoreError};

impl DynamoStore {
    pub(super) async fn run_draw(&self, draw: Draw) -> Result<Drawn, StoreError> {
        let mut pace = Pace::default();
        loop {
            let read = self
                .client
                .get_item()
                .table_name(&self.table)
                .set_key(Some(self.bucket_key(&draw.bucket)))
                .consistent_read(true)
                .send()
                .await
                .map_err(failed)?;
            let read = read.item().map(Stamped::<Bucket>::read).transpose()?;
            let read_at = Instant::now();
            let now = match &read {
                None => wall(),
                Some(Stamped { stamp, content: Bucket { clock, .. }, .. }) => {
                    let age = self.watch().bucket_age(&draw.bucket, stamp, read_at);
                    wall().max(*clock + age)
                }
            };
            let (stamp, before) = read.map(|read| (read.stamp, read.content)).unzip();
            let level = before.unwrap_or_default().level;
            let (drawn, after) = bucket::draw(level, now, draw.per_second, draw.burst, draw.want);
            if drawn.tokens == 0 && after == level {
                return Ok(drawn);
            }
            let mark = self.stamps.next();
            match self.write_bucket(&draw, Bucket { level: after, clock: now }, stamp, mark.clone()).await? {
                Wrote::Done => {
                    self.watch().wrote_bucket(&draw.bucket, &mark, read_at);
                    return Ok(drawn);
                }
                Wrote::Refused | Wrote::Busy => pace.again().await?,
            }
        }
    }

    async fn write_bucket(
        &self,
        draw: &Draw,
        bucket: Bucket,
        stamp: Option<String>,
        mark: String,
    ) -> Result<Wrote, StoreError> {
        let mut item = self.bucket_key(&draw.bucket);
        bucket.write(mark, &mut item);
        let put = self.client.put_item().table_name(&self.table).set_item(Some(item));
        let put = match stamp {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(stamp) => {
                put.condition_expression("stamp = :stamp").expression_attribute_values(":stamp", text(stamp))
            }
        };
        wrote(put.send().await)
    }
}
