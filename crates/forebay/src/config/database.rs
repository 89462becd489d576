//! Checked settings of `[database]`.
//!
//! Invariant: no error contains a URL or a part of one, because it may contain a password.

use std::path::PathBuf;

#[cfg(feature = "aws")]
use forebay_replication::reservoir::{DsqlToken, RdsToken, TokenProvider};
use forebay_replication::reservoir::{PasswordCommand, PasswordFile, PostgresConnect, PostgresTls};
use forebay_replication::{LockTimeouts, ManagerConfig};
use forebay_settings::{SecretText, SettingLayers, ValueError};

#[cfg(feature = "aws")]
use super::iam_auth::IamTarget;
#[cfg(not(feature = "aws"))]
use super::quota::WITHOUT_AWS;
use super::sections::{DatabaseAuth, DatabaseSection};

/// Checks the section and builds the settings of the replication manager.
pub(super) fn check_database(
    section: &DatabaseSection,
    layers: &SettingLayers,
) -> Result<ManagerConfig, ValueError> {
    let password = PasswordSource::check(section, layers)?;
    // The builder reads the file, too, but its error would not name the key.
    layers.read_file("database.ca_file", section.ca_file.as_ref())?;
    let connect = |key, url: &SecretText| connect(key, url, &password, section.ca_file.as_ref(), layers);
    let mut manager = ManagerConfig::new(connect("database.url", &section.url)?)
        .publish_partitions()
        .pool_size(pool_size(section, layers)?)
        .pool_lifetime(section.pool_lifetime_ms, section.pool_lifetime_jitter_ms)
        .pool_guard_window(section.pool_guard_window_ms)
        .lock_timeouts(LockTimeouts {
            check_interval: section.lock_check_ms,
            silence_timeout: section.lock_silence_ms,
        })
        .slot(&section.slot)
        .publication(&section.publication);
    if section.pool_guard_window_ms >= section.pool_lifetime_ms {
        let lifetime = section.pool_lifetime_ms.as_millis();
        let why = format!(
            "must be less than database.pool_lifetime_ms ({lifetime}): otherwise no connection is ever lent"
        );
        let given = section.pool_guard_window_ms.as_millis().to_string();
        return Err(layers.error("database.pool_guard_window_ms", given, why));
    }
    if let Some(low) = section.pool_low_watermark {
        if low > section.pool_size {
            let why = format!("must be at most database.pool_size ({})", section.pool_size);
            return Err(layers.error("database.pool_low_watermark", low.to_string(), why));
        }
        manager = manager.pool_low_watermark(low);
    }
    if let Some(url) = &section.pooled_url {
        manager = manager.pooled(connect("database.pooled_url", url)?);
    }
    if section.manual_publication {
        manager = manager.manual_publication();
    }
    if section.temporary_slot {
        manager = manager.temporary_slot();
    }
    if section.failover_slot {
        if section.temporary_slot {
            let why = "conflicts with database.temporary_slot: a temporary slot can't be synchronized to standbys: \
                       set only one";
            return Err(layers.error("database.failover_slot", "true".to_owned(), why));
        }
        manager = manager.failover_slot();
    }
    if !section.idle_timeout_ms.is_zero() {
        manager = manager.idle_after(section.idle_timeout_ms);
    }
    Ok(manager)
}

/// Returns the number of pool connections. The budget of all instances limits it, because only one
/// instance has pools at a time, and the pool for metadata is filled first.
fn pool_size(section: &DatabaseSection, layers: &SettingLayers) -> Result<u32, ValueError> {
    match section.max_connections {
        0 => Ok(section.pool_size),
        1 => {
            let why = "is too small: at least 2 connections are needed, one for metadata and one for snapshots; \
                       0 sets no limit";
            Err(layers.error("database.max_connections", "1".to_owned(), why))
        }
        most => Ok(section.pool_size.min(most)),
    }
}

/// Source of the database password.
enum PasswordSource<'a> {
    Url,
    File(&'a PathBuf),
    Command(&'a str, &'a [String]),
    /// IAM tokens, for this region or that of the host name.
    #[cfg(feature = "aws")]
    Iam(DatabaseAuth, Option<&'a str>),
}

impl<'a> PasswordSource<'a> {
    fn check(section: &'a DatabaseSection, layers: &SettingLayers) -> Result<PasswordSource<'a>, ValueError> {
        const FILE: &str = "database.password_file";
        const COMMAND: &str = "database.password_command";
        layers.read_file(FILE, section.password_file.as_ref())?;
        if section.auth != DatabaseAuth::Password {
            return PasswordSource::check_iam(section, layers);
        }
        if let Some(region) = &section.aws_region {
            let why = "has no effect unless database.auth is \"rds-iam\" or \"dsql-iam\"";
            return Err(layers.error("database.aws_region", region.clone(), why));
        }
        match (&section.password_file, section.password_command.as_deref()) {
            (None, None | Some([])) => Ok(PasswordSource::Url),
            (Some(path), None | Some([])) => Ok(PasswordSource::File(path)),
            (None, Some([program, args @ ..])) => Ok(PasswordSource::Command(program, args)),
            (Some(_), Some(_)) => {
                let why = "conflicts with password_file: set only one of password_file and password_command";
                Err(layers.error(COMMAND, None, why))
            }
        }
    }

    #[cfg(feature = "aws")]
    fn check_iam(section: &'a DatabaseSection, layers: &SettingLayers) -> Result<Self, ValueError> {
        let has_command = section.password_command.as_ref().is_some_and(|command| !command.is_empty());
        if section.password_file.is_some() || has_command {
            let why = "conflicts with password_file and password_command: set only one of the three";
            return Err(layers.error("database.auth", None, why));
        }
        Ok(PasswordSource::Iam(section.auth, section.aws_region.as_deref()))
    }

    #[cfg(not(feature = "aws"))]
    fn check_iam(_: &'a DatabaseSection, layers: &SettingLayers) -> Result<Self, ValueError> {
        Err(layers.error("database.auth", None, format!("has no effect: this program {WITHOUT_AWS}")))
    }
}

fn connect(
    key: &'static str,
    url: &SecretText,
    password: &PasswordSource<'_>,
    ca_file: Option<&PathBuf>,
    layers: &SettingLayers,
) -> Result<PostgresConnect, ValueError> {
    let url_error = |error| layers.error(key, None, format_args!("is invalid: {error}"));
    let mut builder = PostgresConnect::builder(url.reveal()).map_err(url_error)?;
    builder = match password {
        PasswordSource::Url => builder,
        PasswordSource::File(path) => builder.password_from(PasswordFile::new(path)),
        PasswordSource::Command(program, args) => {
            builder.password_from(PasswordCommand::new(program).args(args.iter().cloned()))
        }
        #[cfg(feature = "aws")]
        PasswordSource::Iam(auth, region) => {
            let mut plain = PostgresConnect::builder(url.reveal()).map_err(url_error)?;
            if let Some(path) = ca_file {
                plain = plain.tls(PostgresTls::new().ca_file(path));
            }
            let target = IamTarget::of(*auth, &plain.build().map_err(url_error)?, *region);
            let target = target.map_err(|error| layers.error(key, None, error))?;
            builder.password_from(iam_tokens(target))
        }
    };
    if let Some(path) = ca_file {
        builder = builder.tls(PostgresTls::new().ca_file(path));
    }
    builder.build().map_err(|error| match ca_file {
        Some(path) if error.key() == "sslrootcert" => {
            layers.error("database.ca_file", path.display().to_string(), format_args!("is invalid: {error}"))
        }
        Some(_) | None => url_error(error),
    })
}

/// Returns the provider of tokens.
#[cfg(feature = "aws")]
fn iam_tokens(target: IamTarget) -> Box<dyn TokenProvider> {
    let IamTarget { auth, host, port, region, user } = target;
    match auth {
        DatabaseAuth::DsqlIam if user == "admin" => Box::new(DsqlToken::new(host, region).admin()),
        DatabaseAuth::DsqlIam => Box::new(DsqlToken::new(host, region)),
        DatabaseAuth::RdsIam | DatabaseAuth::Password => Box::new(RdsToken::new(&host, port, region, user)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_replication::reservoir::{Connect as _, SslMode};
    use forebay_settings::CommandDeclaration;

    use super::*;
    use crate::config::sections::ServeSettings;

    const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBkjCCATegAwIBAgIUJzKu91baCoUrq5Y5wfY+5axnWbswCgYIKoZIzj0EAwIw
HTEbMBkGA1UEAwwSYSB0ZXN0J3MgYXV0aG9yaXR5MCAXDTI2MTExNjExMjQyMloY
DzIxMjYxMDIzMTEyNDIyWjAdMRswGQYDVQQDDBJhIHRlc3QncyBhdXRob3JpdHkw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASLpUqZQeOHmC1WrYyadDQOQSTJBxg0
3i/hiz1VRExu2NuaRqAjgdAiTg8SR2icd3C8SkFLYQFjJw1pv430XkXLo1MwUTAd
BgNVHQ4EFgQUj+FDCj/PPGYfFfHfN4io2WuW2qkwHwYDVR0jBBgwFoAUj+FDCj/P
PGYfFfHfN4io2WuW2qkwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBG
AiEAgehSNt2GCcs93CnlElE/otBkqhlAVJuX67JKep66rmACIQCdx5SL2PGyWc1y
c1ttTMLmlg7kn+o1nJQF04N4X8fArw==
-----END CERTIFICATE-----
";

    fn write_file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn layers() -> SettingLayers {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<ServeSettings>());
        let text = "[database]\nurl = \"postgres://me:of-the-url@h/db\"\n";
        layers.text(text, Path::new("serve.toml")).unwrap();
        layers
    }

    fn section() -> DatabaseSection {
        DatabaseSection::read(&layers()).unwrap()
    }

    fn connect_with(section: &DatabaseSection) -> Result<PostgresConnect, ValueError> {
        let layers = layers();
        let password = PasswordSource::check(section, &layers)?;
        connect("database.url", &section.url, &password, section.ca_file.as_ref(), &layers)
    }

    async fn password(section: &DatabaseSection) -> String {
        connect_with(section).unwrap().credentials().await.unwrap().unwrap().reveal().to_owned()
    }

    #[tokio::test]
    async fn the_password_comes_from_the_configured_source() {
        let mut section = section();
        assert_eq!(password(&section).await, "of-the-url");
        section.password_command = Some(["echo", "of", "a", "program"].map(str::to_owned).into());
        assert_eq!(password(&section).await, "of a program");
        let file = write_file("password", "of-a-file\n");
        section.password_file = Some(file.clone());
        let error = connect_with(&section).unwrap_err().to_string();
        assert!(error.contains("database.password_command") && error.contains("password_file"), "{error}");
        section.password_command = Some(Vec::new());
        assert_eq!(password(&section).await, "of-a-file", "an empty list has no effect");
        std::fs::write(&file, "another").unwrap();
        assert_eq!(password(&section).await, "another", "the file is read for each connection");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_ca_file_enables_full_verification_and_an_invalid_one_is_an_error() {
        let mut section = section();
        assert_eq!(connect_with(&section).unwrap().ssl_mode(), SslMode::Prefer);
        let file = write_file("authority", AUTHORITY);
        section.ca_file = Some(file.clone());
        assert_eq!(connect_with(&section).unwrap().ssl_mode(), SslMode::VerifyFull);
        std::fs::write(&file, "no PEM").unwrap();
        let error = connect_with(&section).unwrap_err();
        assert_eq!((error.key, error.value), ("database.ca_file", Some(file.display().to_string())));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn the_pool_has_at_most_the_connections_of_the_budget() {
        let mut section = section();
        for (max_connections, expected) in [(0, 20), (2, 2), (4, 4), (40, 20)] {
            section.max_connections = max_connections;
            assert_eq!(pool_size(&section, &layers()).unwrap(), expected);
        }
        section.max_connections = 1;
        let error = pool_size(&section, &layers()).unwrap_err();
        assert_eq!((error.key, error.value.as_deref()), ("database.max_connections", Some("1")));
    }
}
