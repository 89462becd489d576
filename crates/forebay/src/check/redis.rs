//! Checks of Redis.

use std::time::Duration;

use forebay_redis::{Config, ExecError, RedisClient};
use tokio::time::timeout;

use super::finding::{CheckArea, Finding};
use super::round_trips;
use crate::terminal::escape_controls;

const AREA: CheckArea = CheckArea::Redis;
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Oldest supported major version, the first with RESP3 and ACLs.
const MIN_VERSION: u32 = 6;

/// Connects to Redis and runs all checks.
pub(super) async fn check(config: Option<&Config>) -> Vec<Finding> {
    let Some(config) = config else {
        return vec![Finding::ok(
            AREA,
            "configured",
            "not configured: the limits of this instance are its own, counted in memory",
        )];
    };
    let at = config.address.to_string();
    let mut config = config.clone();
    (config.reconnect, config.connect_timeout) = (None, QUERY_TIMEOUT);
    let client = match timeout(QUERY_TIMEOUT, RedisClient::connect(config)).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return vec![unreachable(&at, &error.to_string())],
        Err(_) => return vec![unreachable(&at, &format!("no reply within {QUERY_TIMEOUT:?}"))],
    };
    let mut findings = vec![Finding::ok(AREA, "reachable", format!("connected to Redis at {at}"))];
    match client.exec::<String>(("INFO",)).await {
        Ok(info) => findings.extend(evaluate_info(&info)),
        Err(error) => findings.push(query_failed("INFO", &error.to_string())),
    }
    findings.extend(round_trips(&client).await);
    client.close().await;
    findings
}

/// Evaluates the reply of `INFO`.
fn evaluate_info(info: &str) -> Vec<Finding> {
    let field =
        |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let mut findings = Vec::new();
    if let Some(version) = field("redis_version") {
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        findings.push(match major {
            Some(major) if major < MIN_VERSION => {
                let what = format!(
                    "Redis is version {}, but at least {MIN_VERSION} is needed",
                    escape_controls(version)
                );
                Finding::fail(AREA, "version", what, "upgrade Redis")
            }
            Some(_) | None => Finding::ok(AREA, "version", format!("Redis {}", escape_controls(version))),
        });
    }
    if field("role").is_some_and(|role| role != "master") {
        let advice = "set redis.url to the primary";
        findings.push(Finding::fail(AREA, "role", "Redis is a replica and accepts no writes", advice));
    }
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    match field("maxmemory_policy") {
        Some(policy) if policy.starts_with("allkeys") => {
            let when = if bounded { "when memory is full" } else { "if maxmemory is set" };
            let what = format!("maxmemory-policy is {}: Redis evicts counts {when}", escape_controls(policy));
            let advice = "CONFIG SET maxmemory-policy noeviction, also in its config file";
            findings.push(Finding::fail(AREA, "eviction", what, advice));
        }
        Some(policy) => {
            let what = format!("maxmemory-policy is {}: no count is evicted", escape_controls(policy));
            findings.push(Finding::ok(AREA, "eviction", what));
        }
        None => findings.push(query_failed("maxmemory_policy", "INFO does not contain it")),
    }
    findings
}

/// Measures the round trips and the clock of Redis.
async fn round_trips(client: &RedisClient) -> Vec<Finding> {
    let now_ms = async || {
        let (seconds, micros) = client.exec::<(String, String)>(("TIME",)).await?;
        let (seconds, micros) = (seconds.parse::<i128>(), micros.parse::<i128>());
        Ok::<_, ExecError>(
            seconds.ok().zip(micros.ok()).map(|(seconds, micros)| seconds * 1000 + micros / 1000),
        )
    };
    round_trips::measure(AREA, now_ms)
        .await
        .unwrap_or_else(|error| vec![query_failed("TIME", &error.to_string())])
}

fn unreachable(at: &str, why: &str) -> Finding {
    let what = format!("can't connect to Redis at {at}: {}", escape_controls(why));
    let advice =
        "check that it runs and that redis.url is correct; without Redis, each instance follows quota.policy";
    Finding::fail(AREA, "reachable", what, advice)
}

fn query_failed(question: &str, why: &str) -> Finding {
    let what = format!("the query for {question} failed: {}", escape_controls(why));
    Finding::warn(AREA, "answers", what, "allow this user INFO and TIME, besides the commands for counting")
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    /// Returns the findings that are not ok, for a Redis with these values.
    fn problems(
        version: &str,
        role: &str,
        maxmemory: &str,
        policy: &str,
    ) -> Vec<(&'static str, FindingLevel)> {
        let info = format!(
            "# Server\r\nredis_version:{version}\r\nrole:{role}\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"
        );
        let findings = evaluate_info(&info).into_iter().filter(|finding| finding.level != FindingLevel::Ok);
        findings.map(|finding| (finding.check, finding.level)).collect()
    }

    #[test]
    fn an_old_version_a_replica_and_eviction_of_all_keys_are_failures() {
        assert_eq!(problems("7.2.4", "master", "0", "noeviction"), []);
        assert_eq!(problems("7.2.4", "master", "1000000", "volatile-lru"), [], "our keys have no expiry");
        assert_eq!(problems("5.0.14", "master", "0", "noeviction"), [("version", FindingLevel::Fail)]);
        assert_eq!(problems("7.2.4", "slave", "0", "noeviction"), [("role", FindingLevel::Fail)]);
        assert_eq!(problems("7.2.4", "master", "1000000", "allkeys-lru"), [("eviction", FindingLevel::Fail)]);
        assert_eq!(problems("6.0.0", "master", "0", "allkeys-random"), [("eviction", FindingLevel::Fail)]);
    }

    #[test]
    fn a_missing_eviction_policy_is_a_warning() {
        assert_eq!(evaluate_info("redis_version:7.0.0\r\n").last().unwrap().level, FindingLevel::Warn);
    }
}
