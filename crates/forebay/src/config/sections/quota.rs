//! Settings of `[quota]`.

use std::time::Duration;

use forebay_quota::OutagePolicy;
use forebay_settings::SettingChoice;

use crate::config::dsql_variables::lease_limit;
use crate::config::setting_types::Forebay;
use crate::config::settings_macro::settings;

impl SettingChoice<Forebay> for OutagePolicy {
    const CHOICES: &'static [(&'static str, OutagePolicy)] =
        &[("share", OutagePolicy::Share), ("closed", OutagePolicy::Closed), ("open", OutagePolicy::Open)];
}

settings! {
    /// Membership of this instance in the cluster.
    QuotaSection: "quota" {
        /// Name of this instance, unique in the cluster and the same after a restart. With the same
        /// name, the permits of the previous process are free at once.
        member: Option<String>, unset("host name and address"), example("server-1");

        /// DynamoDB table that instances share, instead of Redis. It must exist, with the string
        /// keys `pk` and `sk`; `redis.namespace` applies to it, too. Region and credentials come
        /// from the sources of the AWS SDK, such as `AWS_REGION`. Only in builds with the feature
        /// `aws`.
        table: Option<String>,
            unset("none"),
            example("forebay-quota"),
            dsql(
                "DSQL_DISTRIBUTED_CONN_LEASE_TABLE",
                lease_limit,
                "only with `DSQL_DISTRIBUTED_CONN_LEASE_ENABLED`; its keys are `pk` and `sk`, unlike those of the plugin; with `redis.url`, or in a build without the feature `aws`, the process refuses to start",
            );

        /// Behavior while Redis is unavailable, or has lost its counts or is new: `share` (an equal
        /// part of the limit for each instance), `closed` (no new streams) or `open` (no limit; in
        /// a new or emptied Redis, the streams count that instances have reported).
        policy: OutagePolicy = "share";

        /// Interval of the heartbeats to Redis.
        beat_ms: Duration = 2_000;

        /// Time after the last heartbeat until an instance expires and its permits are free. With
        /// the defaults, four heartbeats may be lost.
        ttl_ms: Duration = 10_000;
    }
}
