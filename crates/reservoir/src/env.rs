//! Settings from environment variables; each variable is checked on its own.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use forebay_quota::Quota;

use crate::config::{ConnectionLimits, DEFAULT_RATE, ReservoirConfig, ReservoirConfigError, Reset};

/// Settings from environment variables.
///
/// | variable | default | |
/// |---|---|---|
/// | `FOREBAY_RESERVOIR_ENABLED` | `false` | use a reservoir |
/// | `FOREBAY_RESERVOIR_TARGET_READY` | maximum of the program | connections to keep |
/// | `FOREBAY_RESERVOIR_LOW_WATERMARK` | half of the target | full dial concurrency below this |
/// | `FOREBAY_RESERVOIR_MAX` | target plus an eighth | maximum number of connections |
/// | `FOREBAY_RESERVOIR_BASE_LIFETIME` | `11m` | minimum lifetime of a connection |
/// | `FOREBAY_RESERVOIR_LIFETIME_JITTER` | `2m` | maximum random addition to the lifetime |
/// | `FOREBAY_RESERVOIR_GUARD_WINDOW` | `45s` | connections that expire within it are not lent |
/// | `FOREBAY_RESERVOIR_REPLACE_AHEAD` | the guard window | lead of the replacement |
/// | `FOREBAY_RESERVOIR_CHECKOUT_TIMEOUT` | `100ms` | timeout of a checkout |
/// | `FOREBAY_RESERVOIR_DIAL_TIMEOUT` | `30s` | timeout of a dial |
/// | `FOREBAY_RESERVOIR_MAX_DIALS` | `8` | concurrent dials |
/// | `FOREBAY_RESERVOIR_LEAK_AFTER` | `60s` | connections held for longer are logged |
/// | `FOREBAY_RESERVOIR_CLOSE_TIMEOUT` | `10m` | maximum time until the server's close |
/// | `FOREBAY_RESERVOIR_RESET` | `standard` | reset: `none`, `standard`, or SQL statements |
/// | `FOREBAY_CONN_RATE_LIMIT` | `100` | new connections per second in the whole cluster |
/// | `FOREBAY_CONN_LEASE_ENABLED` | `false` | limit the connections of all processes |
/// | `FOREBAY_CONN_LEASE_LIMIT` | `10000` | maximum number of connections of all processes |
/// | `FOREBAY_CONN_LEASE_TTL` | `10s` | time after which the units of a killed process are free |
/// | `FOREBAY_CONN_LEASE_REDIS_URL` | | URL of the Redis server that counts the connections |
/// | `FOREBAY_CONN_LEASE_TABLE` | | DynamoDB table that counts them, instead of Redis |
/// | `FOREBAY_CONN_LEASE_NAMESPACE` | `forebay` | name that the processes share |
///
/// Durations are written like `500ms`, `45s`, `11m` or `1h30m`.
#[derive(Debug, Clone)]
pub struct ReservoirEnv {
    /// Whether to use a reservoir.
    pub enabled: bool,
    /// Settings of the reservoir.
    pub reservoir: ReservoirConfig,
    /// New connections per second in the whole cluster.
    pub rate_limit: f64,
    /// Connection limit of all processes; `None` if there is none.
    pub lease: Option<LeaseSettings>,
}

/// A connection limit that all processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Maximum number of connections of all processes together.
    pub limit: u32,
    /// Time after which the units of a killed process are free.
    pub ttl: Duration,
    /// Store in which connections are counted.
    pub store: LeaseStore,
    /// Name that the processes of one limit share.
    pub namespace: String,
}

/// Store in which a shared limit is counted.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseStore {
    /// The Redis server at this URL.
    Redis(String),
    /// This DynamoDB table.
    DynamoDb(String),
}

impl std::fmt::Debug for LeaseStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LeaseStore::Redis(_) => f.write_str("Redis"), // its URL may have a password
            LeaseStore::DynamoDb(table) => f.debug_tuple("DynamoDb").field(table).finish(),
        }
    }
}

impl ReservoirEnv {
    /// Reads the environment variables of this process. `max_open` is the default target.
    ///
    /// # Errors
    /// Fails on the first variable that is invalid or contradicts another.
    pub fn read(max_open: u32) -> Result<Self, ReservoirConfigError> {
        ReservoirEnv::from_lookup(max_open, |name| std::env::var(name).ok())
    }

    /// Reads the variables through `lookup`.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_lookup(
        max_open: u32,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ReservoirConfigError> {
        // A variable that is set and empty counts as unset, as in a shell's `${NAME:-default}`.
        let vars = Variables(|name: &str| lookup(name).filter(|value| !value.is_empty()));
        let target = vars.at_least_one("FOREBAY_RESERVOIR_TARGET_READY")?.unwrap_or(max_open.max(1));
        let mut config = ReservoirConfig::new(target);
        if let Some(low) = vars.at_least_one("FOREBAY_RESERVOIR_LOW_WATERMARK")? {
            vars.check("FOREBAY_RESERVOIR_LOW_WATERMARK", low <= target, || {
                format!("{low} is more than the target of {target}: it can be {target} at most")
            })?;
            config = config.low_watermark(low);
        }
        if let Some(max) = vars.at_least_one("FOREBAY_RESERVOIR_MAX")? {
            vars.check("FOREBAY_RESERVOIR_MAX", max >= target, || {
                format!("{max} is less than the target of {target}: it must be {target} at least")
            })?;
            config = config.max(max);
        }
        type Set = fn(ReservoirConfig, Duration) -> ReservoirConfig;
        let durations: [(&str, Set); 8] = [
            ("FOREBAY_RESERVOIR_BASE_LIFETIME", ReservoirConfig::base_lifetime),
            ("FOREBAY_RESERVOIR_LIFETIME_JITTER", ReservoirConfig::lifetime_jitter),
            ("FOREBAY_RESERVOIR_GUARD_WINDOW", ReservoirConfig::guard_window),
            ("FOREBAY_RESERVOIR_REPLACE_AHEAD", ReservoirConfig::replace_ahead),
            ("FOREBAY_RESERVOIR_CHECKOUT_TIMEOUT", ReservoirConfig::checkout_timeout),
            ("FOREBAY_RESERVOIR_DIAL_TIMEOUT", ReservoirConfig::dial_timeout),
            ("FOREBAY_RESERVOIR_LEAK_AFTER", ReservoirConfig::leak_after),
            ("FOREBAY_RESERVOIR_CLOSE_TIMEOUT", ReservoirConfig::close_timeout),
        ];
        for (name, set) in durations {
            if let Some(duration) = vars.duration(name)? {
                config = set(config, duration);
            }
        }
        if let Some(dials) = vars.at_least_one("FOREBAY_RESERVOIR_MAX_DIALS")? {
            config = config.max_dials(dials);
        }
        if let Some(reset) = vars.text("FOREBAY_RESERVOIR_RESET") {
            config = config.reset(match reset.trim().to_ascii_lowercase().as_str() {
                "none" => Reset::None,
                "standard" => Reset::Standard,
                "rollback" => Reset::Custom(reset),
                statements if statements.contains(' ') => Reset::Custom(reset),
                _ => {
                    let problem = format!("{reset:?} is neither none nor standard, nor SQL statements");
                    return Err(ReservoirConfigError::Variable {
                        variable: "FOREBAY_RESERVOIR_RESET".into(),
                        problem,
                    });
                }
            });
        }
        config.check().map_err(|error| ReservoirConfigError::Variable {
            variable: "FOREBAY_RESERVOIR_BASE_LIFETIME, FOREBAY_RESERVOIR_GUARD_WINDOW".into(),
            problem: error.to_string(),
        })?;
        let rate_limit =
            vars.parsed::<f64>("FOREBAY_CONN_RATE_LIMIT", "a number of connections per second")?;
        vars.check(
            "FOREBAY_CONN_RATE_LIMIT",
            rate_limit.is_none_or(|rate| rate.is_finite() && rate > 0.0),
            || "a rate must be more than 0".into(),
        )?;
        let enabled = vars.flag("FOREBAY_RESERVOIR_ENABLED")?;
        let rate_limit = rate_limit.unwrap_or(DEFAULT_RATE);
        Ok(ReservoirEnv { enabled, reservoir: config, rate_limit, lease: vars.lease()? })
    }

    /// Returns the limits, counted in `quota`.
    ///
    /// `quota` uses the store that [`lease`](Self::lease) names; a local quota will do if it names
    /// none.
    pub fn limits_in(&self, quota: Quota) -> ConnectionLimits {
        let limits = ConnectionLimits::shared(quota).per_second(self.rate_limit);
        match &self.lease {
            Some(lease) => limits.connections(lease.limit),
            None => limits,
        }
    }

    /// Joins a quota as `member` and returns the limits counted in it. Needs a tokio runtime.
    ///
    /// No other process may use the name `member` at the same time.
    ///
    /// # Errors
    /// Fails if the Redis URL is invalid. Fails for a DynamoDB table, because the program must
    /// bring its own client: join a quota with it and use [`limits_in`](Self::limits_in).
    #[cfg(feature = "redis")]
    pub async fn limits(&self, member: &str) -> Result<ConnectionLimits, ReservoirConfigError> {
        use forebay_quota::{MemberConfig, RedisStore};
        let wrong = |variable: &str, problem: String| ReservoirConfigError::Variable {
            variable: variable.into(),
            problem,
        };
        let quota = match &self.lease {
            None => Quota::local(),
            Some(LeaseSettings { store: LeaseStore::DynamoDb(_), .. }) => {
                let problem =
                    "a table needs a client of the program's own: join a quota with it, and use limits_in";
                return Err(wrong("FOREBAY_CONN_LEASE_TABLE", problem.into()));
            }
            Some(LeaseSettings { store: LeaseStore::Redis(url), ttl, namespace, .. }) => {
                let store = RedisStore::open(url, namespace);
                let store =
                    store.map_err(|error| wrong("FOREBAY_CONN_LEASE_REDIS_URL", error.to_string()))?;
                let member = MemberConfig::new(member).ttl(*ttl).heartbeat_interval(*ttl / 5);
                Quota::join(store, member).await
            }
        };
        Ok(self.limits_in(quota))
    }
}

/// Minimum TTL. With a shorter one, the membership of a busy process would expire.
const SHORTEST_TTL: Duration = Duration::from_secs(1);

struct Variables<L>(L);

impl<L: Fn(&str) -> Option<String>> Variables<L> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }

    fn check(
        &self,
        name: &str,
        holds: bool,
        problem: impl FnOnce() -> String,
    ) -> Result<(), ReservoirConfigError> {
        if holds {
            Ok(())
        } else {
            Err(ReservoirConfigError::Variable { variable: name.into(), problem: problem() })
        }
    }

    fn parsed<T: FromStr<Err: Display>>(
        &self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, ReservoirConfigError> {
        let read = |text: String| {
            let text = text.trim();
            let wrong = |error| ReservoirConfigError::Variable {
                variable: name.into(),
                problem: format!("{text:?} is not {what}: {error}"),
            };
            text.parse().map_err(wrong)
        };
        self.text(name).map(read).transpose()
    }

    fn at_least_one(&self, name: &str) -> Result<Option<u32>, ReservoirConfigError> {
        let number = self.parsed::<u32>(name, "a whole number")?;
        self.check(name, number != Some(0), || "it must be 1 at least".into())?;
        Ok(number)
    }

    fn duration(&self, name: &str) -> Result<Option<Duration>, ReservoirConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let problem = || format!("{text:?} is not a duration: write it as 500ms, 45s, 11m or 1h30m");
        let wrong = || ReservoirConfigError::Variable { variable: name.into(), problem: problem() };
        parse_duration(text.trim()).map(Some).ok_or_else(wrong)
    }

    fn flag(&self, name: &str) -> Result<bool, ReservoirConfigError> {
        match self.text(name).map(|text| text.trim().to_ascii_lowercase()).as_deref() {
            None | Some("false" | "0" | "no" | "off") => Ok(false),
            Some("true" | "1" | "yes" | "on") => Ok(true),
            Some(other) => {
                let problem = format!("{other:?} is neither true nor false");
                Err(ReservoirConfigError::Variable { variable: name.into(), problem })
            }
        }
    }

    fn lease(&self) -> Result<Option<LeaseSettings>, ReservoirConfigError> {
        let limit = self.at_least_one("FOREBAY_CONN_LEASE_LIMIT")?;
        let ttl = self.duration("FOREBAY_CONN_LEASE_TTL")?;
        let (redis, table) =
            (self.text("FOREBAY_CONN_LEASE_REDIS_URL"), self.text("FOREBAY_CONN_LEASE_TABLE"));
        self.check("FOREBAY_CONN_LEASE_TTL", ttl.is_none_or(|ttl| ttl >= SHORTEST_TTL), || {
            format!(
                "it must be {SHORTEST_TTL:?} at least: a member that is late by so much loses its connections"
            )
        })?;
        if !self.flag("FOREBAY_CONN_LEASE_ENABLED")? {
            return Ok(None);
        }
        let store = match (redis, table) {
            (Some(url), None) => LeaseStore::Redis(url),
            (None, Some(table)) => LeaseStore::DynamoDb(table),
            (both, _) => {
                let what = if both.is_some() { "both" } else { "neither" };
                let problem = format!(
                    "{what} of FOREBAY_CONN_LEASE_REDIS_URL and FOREBAY_CONN_LEASE_TABLE are set: set one, to say where \
                     connections are counted"
                );
                return Err(ReservoirConfigError::Variable {
                    variable: "FOREBAY_CONN_LEASE_ENABLED".into(),
                    problem,
                });
            }
        };
        Ok(Some(LeaseSettings {
            limit: limit.unwrap_or(10_000),
            ttl: ttl.unwrap_or(Duration::from_secs(10)),
            store,
            namespace: self.text("FOREBAY_CONN_LEASE_NAMESPACE").unwrap_or_else(|| "forebay".into()),
        }))
    }
}

/// Parses numbers with units, such as `1h30m`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().ok()?;
        let end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return None,
        };
        total = total.checked_add(unit.checked_mul(u32::try_from(number).ok()?)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<ReservoirEnv, ReservoirConfigError> {
        ReservoirEnv::from_lookup(16, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
        })
    }

    fn problem(variables: &[(&str, &str)]) -> String {
        read(variables).unwrap_err().to_string()
    }

    #[test]
    fn unset_variables_give_the_defaults() {
        let all = read(&[]).unwrap();
        let rules = all.reservoir.rules();
        assert_eq!((all.enabled, all.rate_limit, all.lease), (false, 100.0, None));
        assert_eq!((rules.target, rules.low_watermark, rules.max), (16, 8, 18));
        assert_eq!(rules.lifetime.base, Duration::from_secs(660));
        assert_eq!(rules.lifetime.jitter, Duration::from_secs(120));
        assert_eq!((rules.guard_window, rules.lead), (Duration::from_secs(45), Duration::from_secs(45)));
    }

    #[test]
    fn every_variable_is_applied() {
        let all = read(&[
            ("FOREBAY_RESERVOIR_ENABLED", "true"),
            ("FOREBAY_RESERVOIR_TARGET_READY", "50"),
            ("FOREBAY_RESERVOIR_LOW_WATERMARK", "40"),
            ("FOREBAY_RESERVOIR_MAX", "60"),
            ("FOREBAY_RESERVOIR_BASE_LIFETIME", "1h30m"),
            ("FOREBAY_RESERVOIR_LIFETIME_JITTER", "90s"),
            ("FOREBAY_RESERVOIR_GUARD_WINDOW", "1m"),
            ("FOREBAY_RESERVOIR_REPLACE_AHEAD", "2m"),
            ("FOREBAY_RESERVOIR_CHECKOUT_TIMEOUT", "250ms"),
            ("FOREBAY_RESERVOIR_DIAL_TIMEOUT", "5s"),
            ("FOREBAY_RESERVOIR_MAX_DIALS", "3"),
            ("FOREBAY_RESERVOIR_LEAK_AFTER", "10s"),
            ("FOREBAY_RESERVOIR_CLOSE_TIMEOUT", "2m"),
            ("FOREBAY_RESERVOIR_RESET", "ROLLBACK; RESET ALL"),
            ("FOREBAY_CONN_RATE_LIMIT", "12.5"),
            ("FOREBAY_CONN_LEASE_ENABLED", "1"),
            ("FOREBAY_CONN_LEASE_LIMIT", "200"),
            ("FOREBAY_CONN_LEASE_TTL", "20s"),
            ("FOREBAY_CONN_LEASE_TABLE", "leases"),
            ("FOREBAY_CONN_LEASE_NAMESPACE", "orders"),
        ])
        .unwrap();
        let (rules, config) = (all.reservoir.rules(), &all.reservoir);
        assert_eq!((rules.target, rules.low_watermark, rules.max, rules.max_dials), (50, 40, 60, 3));
        assert_eq!(
            (rules.lifetime.base, rules.lifetime.jitter),
            (Duration::from_secs(5400), Duration::from_secs(90))
        );
        assert_eq!((rules.guard_window, rules.lead), (Duration::from_secs(60), Duration::from_secs(120)));
        assert_eq!(
            (config.checkout_timeout, config.dial_timeout),
            (Duration::from_millis(250), Duration::from_secs(5))
        );
        assert_eq!(
            (rules.leak_after, config.close_timeout),
            (Duration::from_secs(10), Duration::from_secs(120))
        );
        assert_eq!(config.reset, Reset::Custom("ROLLBACK; RESET ALL".into()));
        assert_eq!((all.enabled, all.rate_limit), (true, 12.5));
        let store = LeaseStore::DynamoDb("leases".into());
        let (ttl, namespace) = (Duration::from_secs(20), "orders".into());
        assert_eq!(all.lease, Some(LeaseSettings { limit: 200, ttl, store, namespace }));
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_variable() {
        let cases = [
            ("FOREBAY_RESERVOIR_TARGET_READY", "many"),
            ("FOREBAY_RESERVOIR_TARGET_READY", "0"),
            ("FOREBAY_RESERVOIR_LOW_WATERMARK", "17"),
            ("FOREBAY_RESERVOIR_MAX", "15"),
            ("FOREBAY_RESERVOIR_BASE_LIFETIME", "11"),
            ("FOREBAY_RESERVOIR_BASE_LIFETIME", "11 minutes"),
            ("FOREBAY_RESERVOIR_GUARD_WINDOW", "-1s"),
            ("FOREBAY_RESERVOIR_GUARD_WINDOW", "11m"),
            ("FOREBAY_RESERVOIR_CHECKOUT_TIMEOUT", "99999999999999999999h"),
            ("FOREBAY_RESERVOIR_ENABLED", "maybe"),
            ("FOREBAY_CONN_RATE_LIMIT", "0"),
            ("FOREBAY_CONN_RATE_LIMIT", "NaN"),
            ("FOREBAY_CONN_LEASE_LIMIT", "-5"),
            ("FOREBAY_CONN_LEASE_TTL", "0s"),
            ("FOREBAY_RESERVOIR_RESET", "off"),
            ("FOREBAY_CONN_LEASE_ENABLED", "true"),
        ];
        for (variable, value) in cases {
            let message = problem(&[(variable, value)]);
            assert!(message.contains(variable), "{variable}={value}: {message}");
        }
        assert_eq!(
            problem(&[("FOREBAY_RESERVOIR_GUARD_WINDOW", "45")]),
            "FOREBAY_RESERVOIR_GUARD_WINDOW: \"45\" is not a duration: write it as 500ms, 45s, 11m or 1h30m"
        );
    }

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        let url = ("FOREBAY_CONN_LEASE_REDIS_URL", "redis://:hunter2@cache");
        let all = read(&[("FOREBAY_CONN_LEASE_ENABLED", "true"), url]).unwrap();
        assert!(!format!("{all:?}").contains("hunter2"));
    }
}
