//! Token buckets: one item each, written by compare and set.
//!
//! Invariant: a bucket's clock never goes back. Over any span of it, at most one burst plus the
//! rate's tokens are given (`core/bucket.rs`).
//! DynamoDB has no clock, so each member uses its own wall clock, and the bucket keeps the latest
//! time that it has seen.
//! A machine whose clock is ahead moves the bucket's time forward once. That fills the bucket, so
//! it costs at most one burst.
//! The other members don't wait for the whole lead: a handle adds the time for which it has seen
//! the bucket unchanged.

use std::time::Instant;

use super::DynamoStore;
use super::items::{BucketItem, StampedItem, text, wall_clock};
use super::outcome::{WriteOutcome, failed, write_outcome};
use super::retry_backoff::RetryBackoff;
use crate::core::bucket;
use crate::store::{StoreError, TokenReply, TokenRequest};

impl DynamoStore {
    pub(super) async fn run_draw(&self, draw: TokenRequest) -> Result<TokenReply, StoreError> {
        let mut backoff = RetryBackoff::default();
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
            let read = read.item().map(StampedItem::<BucketItem>::read).transpose()?;
            let read_at = Instant::now();
            let now = match &read {
                None => wall_clock(),
                Some(StampedItem { stamp, content: BucketItem { clock, .. }, .. }) => {
                    let age = self.liveness.lock().bucket_age(&draw.bucket, stamp, read_at);
                    wall_clock().max(*clock + age)
                }
            };
            let (stamp, before) = read.map(|read| (read.stamp, read.content)).unzip();
            let level = before.unwrap_or_default().level;
            let (reply, after) = bucket::draw(level, now, draw.per_second, draw.burst, draw.want);
            if reply.tokens == 0 && after == level {
                return Ok(reply);
            }
            let new_stamp = self.stamps.next();
            match self
                .write_bucket(&draw, BucketItem { level: after, clock: now }, stamp, new_stamp.clone())
                .await?
            {
                WriteOutcome::Done => {
                    self.liveness.lock().wrote_bucket(&draw.bucket, &new_stamp, read_at);
                    return Ok(reply);
                }
                WriteOutcome::Refused | WriteOutcome::Busy => backoff.wait().await?,
            }
        }
    }

    async fn write_bucket(
        &self,
        draw: &TokenRequest,
        bucket: BucketItem,
        stamp: Option<String>,
        new_stamp: String,
    ) -> Result<WriteOutcome, StoreError> {
        let mut item = self.bucket_key(&draw.bucket);
        bucket.write(new_stamp, &mut item);
        let put = self.client.put_item().table_name(&self.table).set_item(Some(item));
        let put = match stamp {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(stamp) => {
                put.condition_expression("stamp = :stamp").expression_attribute_values(":stamp", text(stamp))
            }
        };
        write_outcome(put.send().await)
    }
}
