//! Asks Redis.

use std::time::Duration;

use forebay_redis::{Config, ExecError, RedisClient};
use tokio::time::timeout;

use super::finding::{Area, Finding};
use super::trips;
use crate::terminal::escape_controls as shown;

const AREA: Area = Area::Redis;
const PATIENCE: Duration = Duration::from_secs(10);
/// The first with RESP3 and ACLs.
const OLDEST: u32 = 6;

pub(super) async fn check(config: Option<&Config>) -> Vec<Finding> {
    let Some(config) = config else {
        return vec![Finding::ok(
            AREA,
            "configured",
            "not configured: this instance counts alone, in memory",
        )];
    };
    let at = config.address.to_string();
    let mut config = config.clone();
    (config.reconnect, config.connect_timeout) = (None, PATIENCE);
    let client = match timeout(PATIENCE, RedisClient::connect(config)).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return vec![unreachable(&at, &error.to_string())],
        Err(_) => return vec![unreachable(&at, &format!("no answer within {PATIENCE:?}"))],
    };
    let mut findings = vec![Finding::ok(AREA, "reachable", format!("Redis answers at {at}"))];
    match client.exec::<String>(("INFO",)).await {
        Ok(info) => findings.extend(about(&info)),
        Err(error) => findings.push(unanswered("INFO", &error.to_string())),
    }
    findings.extend(trips(&client).await);
    client.close().await;
    findings
}

/// What `INFO` tells.
fn about(info: &str) -> Vec<Finding> {
    let said =
        |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let mut findings = Vec::new();
    if let Some(version) = said("redis_version") {
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        findings.push(match major {
            Some(major) if major < OLDEST => {
                let what = format!("Redis is version {}, and at least {OLDEST} is needed", shown(version));
                Finding::fail(AREA, "version", what, "upgrade it")
            }
            Some(_) | None => Finding::ok(AREA, "version", format!("Redis {}", shown(version))),
        });
    }
    if said("role").is_some_and(|role| role != "master") {
        let advice = "name the primary in redis.url";
        findings.push(Finding::fail(AREA, "role", "Redis is a replica, and takes no writes", advice));
    }
    let bounded = said("maxmemory").is_some_and(|bytes| bytes != "0");
    match said("maxmemory_policy") {
        Some(policy) if policy.starts_with("allkeys") => {
            let when = if bounded { "when memory is full" } else { "once a maxmemory is set" };
            let what = format!("maxmemory-policy is {}: Redis drops counts {when}", shown(policy));
            let advice = "CONFIG SET maxmemory-policy noeviction, in its config file, too";
            findings.push(Finding::fail(AREA, "eviction", what, advice));
        }
        Some(policy) => {
            let what = format!("maxmemory-policy is {}: no count is dropped", shown(policy));
            findings.push(Finding::ok(AREA, "eviction", what));
        }
        None => findings.push(unanswered("maxmemory_policy", "INFO doesn't say")),
    }
    findings
}

async fn trips(client: &RedisClient) -> Vec<Finding> {
    let now_ms = async || {
        let (seconds, micros) = client.exec::<(String, String)>(("TIME",)).await?;
        let (seconds, micros) = (seconds.parse::<i128>(), micros.parse::<i128>());
        Ok::<_, ExecError>(
            seconds.ok().zip(micros.ok()).map(|(seconds, micros)| seconds * 1000 + micros / 1000),
        )
    };
    trips::measure(AREA, now_ms).await.unwrap_or_else(|error| vec![unanswered("TIME", &error.to_string())])
}

fn unreachable(at: &str, why: &str) -> Finding {
    let what = format!("can't connect to Redis at {at}: {}", shown(why));
    let advice = "see that it runs and that redis.url is right; without it, each instance counts alone by quota.policy";
    Finding::fail(AREA, "reachable", what, advice)
}

fn unanswered(question: &str, why: &str) -> Finding {
    let what = format!("Redis didn't say what was asked ({question}): {}", shown(why));
    Finding::warn(
        AREA,
        "answers",
        what,
        "allow this user INFO and TIME, besides the commands that it needs to count",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    /// What isn't well, of a Redis that says this besides.
    fn unfit(version: &str, role: &str, maxmemory: &str, policy: &str) -> Vec<(&'static str, Level)> {
        let info = format!(
            "# Server\r\nredis_version:{version}\r\nrole:{role}\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"
        );
        let findings = about(&info).into_iter().filter(|finding| finding.level != Level::Ok);
        findings.map(|finding| (finding.check, finding.level)).collect()
    }

    #[test]
    fn an_old_one_a_replica_and_one_that_drops_keys_are_unfit() {
        assert_eq!(unfit("7.2.4", "master", "0", "noeviction"), []);
        assert_eq!(unfit("7.2.4", "master", "1000000", "volatile-lru"), [], "ours don't expire");
        assert_eq!(unfit("5.0.14", "master", "0", "noeviction"), [("version", Level::Fail)]);
        assert_eq!(unfit("7.2.4", "slave", "0", "noeviction"), [("role", Level::Fail)]);
        assert_eq!(unfit("7.2.4", "master", "1000000", "allkeys-lru"), [("eviction", Level::Fail)]);
        assert_eq!(unfit("6.0.0", "master", "0", "allkeys-random"), [("eviction", Level::Fail)]);
    }

    #[test]
    fn one_that_says_nothing_of_its_policy_is_not_believed() {
        assert_eq!(about("redis_version:7.0.0\r\n").last().unwrap().level, Level::Warn);
    }
}
