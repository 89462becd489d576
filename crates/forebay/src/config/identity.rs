//! Checked settings of `[identity]`, and the trusted proxies.

use std::fmt;

use forebay_admission::{ApiKeys, Class, ForwardedHeader, Identifier, Jwt, KeyError, Network};
use forebay_settings::{SettingLayers, ValueError};
use http::header::HeaderName;

use super::sections::IdentitySection;

/// Condition of a reload: all identity methods stay the same. Any other condition is the name of a
/// method.
pub(crate) const SAME_METHODS: &str = "same methods";

/// Identity methods.
pub struct IdentityConfig {
    /// The methods, in order of precedence.
    pub identify: Identifier,
    /// Names of the methods, for the log and the status.
    pub methods: Vec<&'static str>,
    /// Headers that are accepted only from a trusted proxy.
    pub user_headers: Vec<HeaderName>,
    /// Header with the API key, if it isn't the default.
    pub api_key_header: Option<HeaderName>,
}

impl fmt::Debug for IdentityConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityConfig").field("methods", &self.methods).finish_non_exhaustive()
    }
}

/// Proxies whose headers about clients are trusted.
pub(super) struct TrustedProxies<'a> {
    /// The key with the networks, for errors.
    pub(super) key: &'static str,
    pub(super) networks: &'a [Network],
    pub(super) forwarded_by: ForwardedHeader,
}

impl IdentityConfig {
    pub(super) fn check(
        section: &IdentitySection,
        proxies: &TrustedProxies<'_>,
        layers: &SettingLayers,
    ) -> Result<IdentityConfig, ValueError> {
        let TrustedProxies { key: proxies_key, networks: proxies, forwarded_by } = *proxies;
        let (mut identify, mut methods, mut user_headers) = (Identifier::new(), Vec::new(), Vec::new());
        if let Some(jwt) = check_jwt(section, layers)? {
            identify = identify.jwt(jwt);
            methods.push("jwt");
        }
        if let Some(keys) = check_api_keys(section, layers)? {
            identify = identify.api_keys(keys);
            methods.push("api_key");
        }
        identify = identify.trusted_proxies(proxies.iter().copied());
        let require_proxies = |key, name: &HeaderName| {
            let why =
                format!("is accepted only from trusted proxies, and none are configured: set {proxies_key}");
            if proxies.is_empty() { Err(layers.error(key, name.to_string(), why)) } else { Ok(()) }
        };
        if let Some(name) = section.user_header.clone() {
            require_proxies("identity.user_header", &name)?;
            identify = identify.trusted_header_named(name.clone());
            user_headers.push(name);
            methods.push("trusted_header");
        }
        if let Some(name) = section.class_header.clone() {
            require_proxies("identity.class_header", &name)?;
            if section.user_header.is_none() {
                let why = "is the class of the user in identity.user_header, which is not set";
                return Err(layers.error("identity.class_header", name.to_string(), why));
            }
            identify = identify.trusted_class_header(name.clone());
            user_headers.push(name);
        }
        if section.by_address {
            let by = if proxies.is_empty() { ForwardedHeader::PeerOnly } else { forwarded_by };
            identify = identify.address(by);
            methods.push("address");
        }
        let api_key_header = section.api_key_header.clone();
        Ok(IdentityConfig { identify, methods, user_headers, api_key_header })
    }
}

fn check_jwt(section: &IdentitySection, layers: &SettingLayers) -> Result<Option<Jwt>, ValueError> {
    const SECRET: &str = "identity.jwt_secret_file";
    const PUBLIC: &str = "identity.jwt_public_key_file";
    const JWKS: &str = "identity.jwt_jwks_file";
    let secret = layers.read_file(SECRET, section.jwt_secret_file.as_ref())?;
    let public = layers.read_file(PUBLIC, section.jwt_public_key_file.as_ref())?;
    let key_error = |key, path: Option<&std::path::PathBuf>, error: KeyError| {
        layers.error(key, path.map(|path| path.display().to_string()), error)
    };
    let jwt = match (secret, public, &section.jwt_jwks_file) {
        (None, None, None) => return no_jwt_setting(section, layers).map(|()| None),
        (Some(secret), None, None) => {
            let secret = secret.strip_suffix(b"\n").unwrap_or(&secret);
            Jwt::secret(secret.strip_suffix(b"\r").unwrap_or(secret))
                .map_err(|error| key_error(SECRET, section.jwt_secret_file.as_ref(), error))?
        }
        (None, Some(pem), None) => Jwt::public_key_pem(&pem)
            .map_err(|error| key_error(PUBLIC, section.jwt_public_key_file.as_ref(), error))?,
        (None, None, Some(path)) => {
            Jwt::jwks_file(path).map_err(|error| key_error(JWKS, Some(path), error))?
        }
        (Some(_), _, _) | (None, Some(_), Some(_)) => {
            let why = "conflicts with another key: set only one of jwt_secret_file, jwt_public_key_file and jwt_jwks_file";
            let key = if section.jwt_secret_file.is_some() { SECRET } else { PUBLIC };
            return Err(layers.error(key, None, why));
        }
    };
    let jwt = section.jwt_user_claim.iter().fold(jwt, |jwt, claim| jwt.user_claim(claim));
    let jwt = section.jwt_class_claim.iter().fold(jwt, |jwt, claim| jwt.class_claim(claim));
    let jwt = section.jwt_issuers.iter().flatten().fold(jwt, |jwt, issuer| jwt.issuer(issuer));
    Ok(Some(section.jwt_audiences.iter().flatten().fold(jwt, |jwt, audience| jwt.audience(audience))))
}

/// Fails if a token setting is present without a key. It would have no effect, and the operator
/// expects tokens to be read.
fn no_jwt_setting(section: &IdentitySection, layers: &SettingLayers) -> Result<(), ValueError> {
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let settings = [
        ("identity.jwt_user_claim", section.jwt_user_claim.is_some()),
        ("identity.jwt_class_claim", section.jwt_class_claim.is_some()),
        ("identity.jwt_issuers", some(&section.jwt_issuers)),
        ("identity.jwt_audiences", some(&section.jwt_audiences)),
    ];
    settings.into_iter().find(|(_, set)| *set).map_or(Ok(()), |(key, _)| {
        let why = "has no effect without a key to verify tokens: set one of identity.jwt_secret_file, \
                   jwt_public_key_file and jwt_jwks_file";
        Err(layers.error(key, None, why))
    })
}

fn check_api_keys(section: &IdentitySection, layers: &SettingLayers) -> Result<Option<ApiKeys>, ValueError> {
    const KEY: &str = "identity.api_keys_file";
    let Some(content) = layers.read_file(KEY, section.api_keys_file.as_ref())? else {
        return section.api_key_header.as_ref().map_or(Ok(None), |name| {
            let why = "has no effect without API keys: set identity.api_keys_file";
            Err(layers.error("identity.api_key_header", name.to_string(), why))
        });
    };
    let path = section.api_keys_file.as_ref().map(|path| path.display().to_string());
    let file_error = |why: String| layers.error(KEY, path.clone(), why);
    let content = String::from_utf8(content).map_err(|_| file_error("is not UTF-8 text".to_owned()))?;
    let mut keys = ApiKeys::new();
    if let Some(name) = &section.api_key_header {
        keys = keys.header(name.clone());
    }
    for (line, text) in content.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        if text.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let (hash, user, class) = match words[..] {
            [hash, user] => (hash, user, None),
            [hash, user, class] => (hash, user, Some(Class::new(class))),
            _ => return Err(file_error(format!("line {} must be `SHA256 USER [CLASS]`", line + 1))),
        };
        // The error does not quote the line, because it may contain the API key itself by mistake.
        let hash = decode_hash(hash);
        let hash = hash.ok_or_else(|| {
            file_error(format!("line {} must start with a SHA-256 in hexadecimal", line + 1))
        })?;
        keys = keys
            .try_sha256(hash, user, class)
            .map_err(|error| file_error(format!("line {}: {error}", line + 1)))?;
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
