//! Who may hold a stream, how a user is known, and with whom this instance counts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use forebay_admission::{
    Admission, ApiKeys, Builder, Class, ForwardedBy, Identify, Jwt, KeyError, MemoryBound, Network,
    StreamLimits,
};
use forebay_quota::OutagePolicy;
use forebay_redis::{Config as RedisConfig, IntoConfig as _};
use http::header::HeaderName;

use super::check::{Check, ValueError};
use super::file::{AdmissionSection, IdentitySection, QuotaSection, RedisSection};

/// The limits.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// All that admission is told.
    pub builder: Builder,
    /// Streams in all.
    pub total: u32,
    /// These and those of one user.
    pub limits: StreamLimits,
    /// Streams of one user, as asked for; none if nobody asked.
    pub per_user: Option<u32>,
    /// The parts of the total at which classes stop, in percent.
    shares: BTreeMap<String, u8>,
}

impl AdmissionConfig {
    /// `per_user` holds where nothing else is said.
    pub(super) fn check(
        section: &AdmissionSection,
        per_user: u32,
        has_identity: bool,
        check: &Check,
    ) -> Result<AdmissionConfig, ValueError> {
        let total = check.count("admission.total", section.total, 10_000)?;
        let per_user = check.count("admission.per_user", section.per_user, per_user)?;
        let degraded = percent(check, "admission.degraded_percent", section.degraded_percent.unwrap_or(70))?;
        let critical = percent(check, "admission.critical_percent", section.critical_percent.unwrap_or(90))?;
        if critical < degraded {
            let why = format!("must not be below admission.degraded_percent, which is {degraded}");
            return Err(check.wrong("admission.critical_percent", critical.to_string(), why));
        }
        let waiting = check.count("admission.max_waiting", section.max_waiting, 1_024)?;
        let waiting_per_user =
            check.count("admission.max_waiting_per_user", section.max_waiting_per_user, 8)?;
        let wait = match section.wait_ms {
            None | Some(0) => Duration::ZERO,
            given => check.duration("admission.wait_ms", given, Duration::ZERO)?,
        };
        let memory =
            percent(check, "admission.max_memory_percent", section.max_memory_percent.unwrap_or(95))?;
        let mut builder = Admission::builder()
            .total(total)
            .per_user(per_user)
            .thresholds(degraded, critical)
            .wait(wait)
            .max_waiting(waiting as usize, waiting_per_user as usize)
            .shed_by_memory(match memory {
                0 => MemoryBound::Off,
                memory => MemoryBound::Fraction(f64::from(memory) / 100.0),
            });
        if let Some(cpu) = section.max_cpu_percent {
            let cpu = percent(check, "admission.max_cpu_percent", cpu)?;
            builder = builder.shed_by_cpu(f64::from(cpu) / 100.0);
        }
        // Room that is kept for users would be lost where nobody can be one.
        let anonymous = (Class::ANONYMOUS.as_str().to_owned(), if has_identity { 90 } else { 100 });
        let mut shares = BTreeMap::from([anonymous]);
        shares.extend(section.class_percent.clone().unwrap_or_default());
        for (class, share) in &shares {
            builder = builder.class(Class::new(class), percent(check, "admission.class_percent", *share)?);
        }
        let limits = StreamLimits { total, per_user };
        Ok(AdmissionConfig { builder, total, limits, per_user: section.per_user, shares })
    }

    /// The classes that have a share of the total, in percent.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&str, u8)> {
        self.shares.iter().map(|(class, share)| (class.as_str(), *share))
    }

    /// At which part of the total, in percent, a class stops.
    pub(crate) fn share(&self, class: &Class) -> u8 {
        self.shares.get(class.as_str()).copied().unwrap_or(100)
    }
}

fn percent(check: &Check, key: &'static str, given: u8) -> Result<u8, ValueError> {
    if given > 100 {
        return Err(check.wrong(key, given.to_string(), "must be 0 to 100, in percent"));
    }
    Ok(given)
}

/// How a user is known.
pub struct IdentityConfig {
    /// The ways, in their order.
    pub identify: Identify,
    /// Their names, for the log and the status.
    pub ways: Vec<&'static str>,
    /// Headers that only a trusted proxy may set.
    pub user_headers: Vec<HeaderName>,
}

impl fmt::Debug for IdentityConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityConfig").field("ways", &self.ways).finish_non_exhaustive()
    }
}

/// Whose word about clients counts.
pub(super) struct Proxies {
    /// The key that names them.
    pub(super) key: &'static str,
    pub(super) networks: Vec<Network>,
    pub(super) forwarded_by: ForwardedBy,
}

impl Proxies {
    /// As two keys of a section say.
    pub(super) fn check(
        (key, networks): (&'static str, Option<&Vec<String>>),
        (by_key, by): (&'static str, Option<&String>),
        check: &Check,
    ) -> Result<Proxies, ValueError> {
        let ways = [("x-forwarded-for", ForwardedBy::XForwardedFor), ("forwarded", ForwardedBy::Forwarded)];
        let networks = check.list(key, networks)?;
        Ok(Proxies { key, networks, forwarded_by: check.choice(by_key, by, &ways)? })
    }
}

impl IdentityConfig {
    pub(super) fn check(
        section: &IdentitySection,
        proxies: &Proxies,
        check: &Check,
    ) -> Result<IdentityConfig, ValueError> {
        let Proxies { key: proxies_key, networks: proxies, forwarded_by } = proxies;
        let (mut identify, mut ways, mut user_headers) = (Identify::new(), Vec::new(), Vec::new());
        if let Some(jwt) = check_jwt(section, check)? {
            identify = identify.jwt(jwt);
            ways.push("jwt");
        }
        if let Some(keys) = check_api_keys(section, check)? {
            identify = identify.api_keys(keys);
            ways.push("api_key");
        }
        identify = identify.trusted_proxies(proxies.iter().copied());
        let believed = |key, name: &HeaderName| {
            let why = format!(
                "is believed only from trusted proxies, and there are none: name them in {proxies_key}"
            );
            if proxies.is_empty() { Err(check.wrong(key, name.to_string(), why)) } else { Ok(()) }
        };
        if let Some(name) = check.header("identity.user_header", section.user_header.as_ref())? {
            believed("identity.user_header", &name)?;
            identify = identify.trusted_header_named(name.clone());
            user_headers.push(name);
            ways.push("trusted_header");
        }
        if let Some(name) = check.header("identity.class_header", section.class_header.as_ref())? {
            believed("identity.class_header", &name)?;
            if section.user_header.is_none() {
                let why = "tells the class of the user in identity.user_header, which is not set";
                return Err(check.wrong("identity.class_header", name.to_string(), why));
            }
            identify = identify.trusted_class_header(name.clone());
            user_headers.push(name);
        }
        if section.by_address == Some(true) {
            let by = if proxies.is_empty() { ForwardedBy::PeerOnly } else { *forwarded_by };
            identify = identify.address(by);
            ways.push("address");
        }
        Ok(IdentityConfig { identify, ways, user_headers })
    }
}

fn check_jwt(section: &IdentitySection, check: &Check) -> Result<Option<Jwt>, ValueError> {
    const SECRET: &str = "identity.jwt_secret_file";
    const PUBLIC: &str = "identity.jwt_public_key_file";
    const JWKS: &str = "identity.jwt_jwks_file";
    let secret = check.read(SECRET, section.jwt_secret_file.as_ref())?;
    let public = check.read(PUBLIC, section.jwt_public_key_file.as_ref())?;
    let bad = |key, path: Option<&std::path::PathBuf>, error: KeyError| {
        check.wrong(key, path.map(|path| path.display().to_string()), error)
    };
    let jwt = match (secret, public, &section.jwt_jwks_file) {
        (None, None, None) => return no_jwt_setting(section, check).map(|()| None),
        (Some(secret), None, None) => {
            let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
            Jwt::secret(secret.strip_suffix(b"\r").unwrap_or(secret))
                .map_err(|error| bad(SECRET, section.jwt_secret_file.as_ref(), error))?
        }
        (None, Some(pem), None) => Jwt::public_key_pem(&pem)
            .map_err(|error| bad(PUBLIC, section.jwt_public_key_file.as_ref(), error))?,
        (None, None, Some(path)) => Jwt::jwks_file(path).map_err(|error| bad(JWKS, Some(path), error))?,
        (Some(_), _, _) | (None, Some(_), Some(_)) => {
            let why = "is not alone: of jwt_secret_file, jwt_public_key_file and jwt_jwks_file, name one";
            let key = if section.jwt_secret_file.is_some() { SECRET } else { PUBLIC };
            return Err(check.wrong(key, None, why));
        }
    };
    let jwt = section.jwt_user_claim.iter().fold(jwt, |jwt, claim| jwt.user_claim(claim));
    let jwt = section.jwt_class_claim.iter().fold(jwt, |jwt, claim| jwt.class_claim(claim));
    let jwt = section.jwt_issuers.iter().flatten().fold(jwt, |jwt, issuer| jwt.issuer(issuer));
    Ok(Some(section.jwt_audiences.iter().flatten().fold(jwt, |jwt, audience| jwt.audience(audience))))
}

/// Without a key no token is read, and whoever set these means to have tokens read.
fn no_jwt_setting(section: &IdentitySection, check: &Check) -> Result<(), ValueError> {
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let settings = [
        ("identity.jwt_user_claim", section.jwt_user_claim.is_some()),
        ("identity.jwt_class_claim", section.jwt_class_claim.is_some()),
        ("identity.jwt_issuers", some(&section.jwt_issuers)),
        ("identity.jwt_audiences", some(&section.jwt_audiences)),
    ];
    settings.into_iter().find(|(_, set)| *set).map_or(Ok(()), |(key, _)| {
        let why = "has no effect without a key to verify tokens with: name one of identity.jwt_secret_file, \
                   jwt_public_key_file and jwt_jwks_file";
        Err(check.wrong(key, None, why))
    })
}

fn check_api_keys(section: &IdentitySection, check: &Check) -> Result<Option<ApiKeys>, ValueError> {
    const KEY: &str = "identity.api_keys_file";
    let Some(content) = check.read(KEY, section.api_keys_file.as_ref())? else {
        return section.api_key_header.as_ref().map_or(Ok(None), |name| {
            let why = "has no effect without the keys: name their file in identity.api_keys_file";
            Err(check.wrong("identity.api_key_header", name.clone(), why))
        });
    };
    let path = section.api_keys_file.as_ref().map(|path| path.display().to_string());
    let wrong = |why: String| check.wrong(KEY, path.clone(), why);
    let content = String::from_utf8(content).map_err(|_| wrong("is no UTF-8 text".to_owned()))?;
    let mut keys = ApiKeys::new();
    if let Some(name) = check.header("identity.api_key_header", section.api_key_header.as_ref())? {
        keys = keys.header(name);
    }
    for (line, text) in content.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        if text.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let (hash, user, class) = match words[..] {
            [hash, user] => (hash, user, None),
            [hash, user, class] => (hash, user, Some(Class::new(class))),
            _ => return Err(wrong(format!("has on line {} other than `SHA256 USER [CLASS]`", line + 1))),
        };
        // The line isn't repeated: it may hold the key itself, by mistake.
        let hash = decode_hash(hash);
        let hash =
            hash.ok_or_else(|| wrong(format!("has on line {} no SHA-256 in hexadecimal", line + 1)))?;
        keys = keys
            .try_sha256(hash, user, class)
            .map_err(|error| wrong(format!("has on line {}: {error}", line + 1)))?;
    }
    Ok(Some(keys))
}

fn decode_hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// With whom this instance counts, and how.
#[derive(Debug, Clone)]
pub struct QuotaConfig {
    /// Where instances meet; none: in memory, alone.
    pub redis: Option<RedisConfig>,
    /// What the keys begin with.
    pub namespace: String,
    /// The name of this instance; none: by host and address.
    pub member: Option<String>,
    /// What holds without the store.
    pub policy: OutagePolicy,
    /// How often it tells that it lives.
    pub beat: Duration,
    /// How long it is believed.
    pub ttl: Duration,
}

impl QuotaConfig {
    pub(super) fn check(
        redis: &RedisSection,
        quota: &QuotaSection,
        check: &Check,
    ) -> Result<QuotaConfig, ValueError> {
        // Neither the value nor its error is shown with it: it may hold a password.
        let url = redis.url.as_ref().map(|url| url.reveal().into_config());
        let url = url.transpose().map_err(|error| check.wrong("redis.url", None, error))?;
        let namespace = redis.namespace.clone().unwrap_or_else(|| "forebay".to_owned());
        if namespace.is_empty()
            || namespace.contains(['{', '}'])
            || namespace.chars().any(char::is_whitespace)
        {
            let why = "must be a word without braces, which mark the hash slot";
            return Err(check.wrong("redis.namespace", namespace, why));
        }
        let beat = check.duration("quota.beat_ms", quota.beat_ms, Duration::from_secs(2))?;
        let ttl = check.duration("quota.ttl_ms", quota.ttl_ms, Duration::from_secs(10))?;
        if ttl < beat * 2 {
            let why = format!("must be at least twice quota.beat_ms ({} ms)", beat.as_millis());
            return Err(check.wrong("quota.ttl_ms", ttl.as_millis().to_string(), why));
        }
        let policies =
            [("share", OutagePolicy::Share), ("closed", OutagePolicy::Closed), ("open", OutagePolicy::Open)];
        let policy = check.choice("quota.policy", quota.policy.as_ref(), &policies)?;
        Ok(QuotaConfig { redis: url, namespace, member: quota.member.clone(), policy, beat, ttl })
    }
}
