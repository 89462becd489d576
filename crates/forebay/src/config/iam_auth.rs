//! IAM tokens instead of a database password: the host, port, region and user that a token is for.
//!
//! Invariant: a token is sent only over TLS, because the server requests it as plain text.

use forebay_replication::reservoir::{PostgresConnect, SslMode};

use super::sections::DatabaseAuth;

/// What a token is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IamTarget {
    pub(super) auth: DatabaseAuth,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) region: String,
    pub(super) user: String,
}

/// Why no token can be made for a connection string. Each text follows the key of the setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum IamTargetError {
    #[error("must name one host: an IAM token is for one host and port")]
    NotOneHost,
    #[error(
        "needs TLS for an IAM token, which is sent as plain text: add `sslmode=verify-full`, or at least \
         `sslmode=require`"
    )]
    WithoutTls,
    #[error("has a host name without an AWS region: set database.aws_region")]
    NoRegion,
}

impl IamTarget {
    /// Returns what a token for this connection is for. `region` overrides that of the host name.
    pub(super) fn of(
        auth: DatabaseAuth,
        connect: &PostgresConnect,
        region: Option<&str>,
    ) -> Result<IamTarget, IamTargetError> {
        if connect.ssl_mode() < SslMode::Require {
            return Err(IamTargetError::WithoutTls);
        }
        let endpoint = connect.endpoint();
        let (host, port) = endpoint.rsplit_once(':').ok_or(IamTargetError::NotOneHost)?;
        let port = port.parse().map_err(|_| IamTargetError::NotOneHost)?;
        if host.contains([',', '/']) {
            return Err(IamTargetError::NotOneHost);
        }
        let region = region.or_else(|| region_in(auth, host)).ok_or(IamTargetError::NoRegion)?;
        let (host, region, user) = (host.to_owned(), region.to_owned(), connect.user().to_owned());
        Ok(IamTarget { auth, host, port, region, user })
    }
}

/// Returns the region in the host name of a service. It stands before `rds`, but after `dsql`, and
/// after `rds` in China. The endpoint of a global database names no region.
fn region_in(auth: DatabaseAuth, host: &str) -> Option<&str> {
    let labels: Vec<&str> = host.split('.').collect();
    let is_dsql = |label: &&str| *label == "dsql" || label.starts_with("dsql-");
    let region = match auth {
        DatabaseAuth::Password => None,
        DatabaseAuth::RdsIam => {
            let service = labels.iter().rposition(|label| *label == "rds")?;
            let is_china = host.ends_with(".amazonaws.com.cn");
            if is_china { labels.get(service + 1) } else { labels.get(service.checked_sub(1)?) }
        }
        DatabaseAuth::DsqlIam => labels.get(labels.iter().position(is_dsql)? + 1),
    };
    region.copied().filter(|label| is_region(label))
}

/// Returns whether a label has the form of a region, such as `eu-central-1`.
fn is_region(label: &str) -> bool {
    label.contains('-') && label.ends_with(|letter: char| letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(auth: DatabaseAuth, url: &str, region: Option<&str>) -> Result<IamTarget, IamTargetError> {
        IamTarget::of(auth, &PostgresConnect::new(url).unwrap(), region)
    }

    #[test]
    fn host_port_region_and_user_come_from_the_url() {
        let (rds, dsql) = (DatabaseAuth::RdsIam, DatabaseAuth::DsqlIam);
        for (auth, url, region, expected) in [
            (
                rds,
                "postgres://app@shop.abc.eu-central-1.rds.amazonaws.com/shop?sslmode=require",
                None,
                ("shop.abc.eu-central-1.rds.amazonaws.com", 5432, "eu-central-1", "app"),
            ),
            (
                rds,
                "postgres://app@shop.abc.rds.cn-north-1.amazonaws.com.cn:6000/shop?sslmode=require",
                None,
                ("shop.abc.rds.cn-north-1.amazonaws.com.cn", 6000, "cn-north-1", "app"),
            ),
            (
                dsql,
                "postgres://admin@foo.dsql.us-east-1.on.aws/postgres?sslmode=verify-full",
                None,
                ("foo.dsql.us-east-1.on.aws", 5432, "us-east-1", "admin"),
            ),
            (
                dsql,
                "postgres://me@foo.dsql-fnh4.us-east-2.on.aws/postgres?sslmode=verify-full",
                None,
                ("foo.dsql-fnh4.us-east-2.on.aws", 5432, "us-east-2", "me"),
            ),
            (
                rds,
                "postgres://me@alias.example/shop?sslmode=require",
                Some("eu-west-1"),
                ("alias.example", 5432, "eu-west-1", "me"),
            ),
        ] {
            let IamTarget { host, port, region, user, .. } = target(auth, url, region).unwrap();
            assert_eq!((host.as_str(), port, region.as_str(), user.as_str()), expected);
        }
    }

    #[test]
    fn the_region_is_read_from_each_form_of_endpoint() {
        let (rds, dsql) = (DatabaseAuth::RdsIam, DatabaseAuth::DsqlIam);
        for (auth, host, expected) in [
            (rds, "shop.abc.eu-central-1.rds.amazonaws.com", Some("eu-central-1")),
            (rds, "shop.cluster-ro-abc.us-gov-west-1.rds.amazonaws.com", Some("us-gov-west-1")),
            (rds, "shop.proxy-abc.us-east-1.rds.amazonaws.com", Some("us-east-1")),
            (rds, "rds.abc.us-east-1.rds.amazonaws.com", Some("us-east-1")),
            (rds, "shop.abc.rds.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            (rds, "shop.proxy-abc.rds.cn-northwest-1.amazonaws.com.cn", Some("cn-northwest-1")),
            (rds, "shop.global-abc.global.rds.amazonaws.com", None),
            (rds, "global.rds.amazonaws.com", None),
            (rds, "rds.amazonaws.com", None),
            (rds, "db.example", None),
            (dsql, "foo.dsql.us-east-1.on.aws", Some("us-east-1")),
            (dsql, "foo.dsql.on.aws", None),
            (dsql, "foo.dsql", None),
        ] {
            assert_eq!(region_in(auth, host), expected, "{host}");
        }
    }

    #[test]
    fn several_hosts_sockets_plain_text_and_unknown_regions_are_refused() {
        let rds = |url, region| target(DatabaseAuth::RdsIam, url, region).unwrap_err();
        let region = Some("eu-west-1");
        assert_eq!(rds("postgres://me@a,b/shop?sslmode=require", region), IamTargetError::NotOneHost);
        assert_eq!(rds("host=/tmp user=me sslmode=require", region), IamTargetError::NotOneHost);
        assert_eq!(rds("postgres://me@db.example/shop", region), IamTargetError::WithoutTls);
        assert_eq!(rds("postgres://me@db.example/shop?sslmode=require", None), IamTargetError::NoRegion);
    }
}
