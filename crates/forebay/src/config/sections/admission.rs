//! Settings of `[admission]`.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_settings::{Reload, SecretText};

use crate::config::settings_macro::settings;

/// When a new limit takes effect.
const AT_ONCE: Reload = Reload::Applied("at once; open streams continue");

settings! {
    /// Limits for streams.
    AdmissionSection: "admission" {
        /// Maximum number of streams of all instances with the same Redis; above it 503.
        total: u32 = 10_000, at_least(1), reload(AT_ONCE), flag("--total", "N");

        /// Maximum number of streams of one user, at all instances with the same Redis; above it
        /// 429. It needs a method in `[identity]`. In `forebay serve`, a web page has one stream
        /// for each shape.
        per_user: u32 = 100,
            gate_default(|| 3.into()),
            at_least(1),
            reload(AT_ONCE),
            flag("--per-user", "N");

        /// Share of the total from which the state is `degraded`. The default is early enough to
        /// add machines.
        degraded_percent: u8 = 70, bounds(0, 100);

        /// Share of the total from which the state is `critical`.
        critical_percent: u8 = 90, bounds(0, 100);

        /// Share of the total above which requests of a class are refused, so that the rest is left
        /// for other classes. A user or a route has a class. If both have one, the smaller share
        /// counts. The class of a route must have a share here.
        class_percent: Option<BTreeMap<String, u8>>,
            unset("`anonymous` 90 if an identity method is configured, else 100; 100 for every other class \
                   of users"),
            example("{ anonymous = 90, user = 100 }"),
            bounds(0, 100);

        /// Time that a request may wait for a permit before the 503; 0: it does not wait.
        wait_ms: Duration = 0, or_zero();

        /// Maximum number of waiting requests. Further ones are refused at once.
        max_waiting: u32 = 1_024, at_least(1);

        /// Maximum number of waiting requests of one user.
        max_waiting_per_user: u32 = 8, at_least(1);

        /// Share of the available memory above which this process refuses new streams; 0: no limit.
        max_memory_percent: u8 = 95, bounds(0, 100);

        /// Share of the available CPU time, over 5 s, above which this process refuses new streams.
        max_cpu_percent: Option<u8>,
            unset("none, because a busy process is not yet overloaded"),
            example("90"),
            bounds(0, 100);

        /// Lowest value of the adaptive limit, which bounds the streams of this process between the
        /// floor and `total`. It falls if new streams start slower than usual or fail, or if this
        /// process uses most of its memory or CPU time, and rises again. Above it 503; open streams
        /// continue.
        adaptive_floor: Option<u32>,
            unset("none: only `total` bounds the streams"),
            example("50"),
            at_least(1);

        /// Key of the hashes of users in logs, in `/v1/status` and in `/v1/streams`. Instances with
        /// the same key show the same hash for a user. Keep it secret: with it, a hash can be
        /// compared with guessed users.
        user_hash_key: Option<SecretText>,
            unset("random at each start, different in each instance"),
            example("long and random");
    }
}
