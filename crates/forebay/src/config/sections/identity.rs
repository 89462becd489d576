//! Settings of `[identity]`.

use std::path::PathBuf;

use forebay_settings::Reload;
use http::HeaderName;

use crate::config::identity::SAME_METHODS;
use crate::config::settings_macro::settings;

/// Applied if this identity method is configured before and after the change.
const WITH_JWT: Reload = Reload::AppliedIf("jwt");
const WITH_API_KEYS: Reload = Reload::AppliedIf("api_key");
/// Applied if all identity methods stay the same.
const WITH_SAME_METHODS: Reload = Reload::AppliedIf(SAME_METHODS);

settings! {
    /// Identification of users, for the limits. Each method is off by default: a signed token in
    /// `Authorization: Bearer`, an API key, a header of a trusted proxy, the IP address. The first
    /// method that finds a user decides, in this order. Without any method, only the total limit
    /// applies. A wrong credential is refused. In `forebay serve`, access to data is controlled by
    /// `serve.secret` and `serve.tokens`, or by a proxy before the server.
    IdentitySection: "identity" {
        /// File with the secret of signed tokens (HS256 and longer), at least 32 bytes. A line
        /// break at its end is ignored. Set at most one of the three keys for tokens.
        jwt_secret_file: Option<PathBuf>, example("/etc/forebay/jwt.secret"), reload(WITH_JWT);

        /// PEM file with the public key of signed tokens (RSA, P-256, P-384, Ed25519).
        jwt_public_key_file: Option<PathBuf>, example("/etc/forebay/jwt.pem"), reload(WITH_JWT);

        /// File with a JSON Web Key Set. It is reloaded when it changes.
        jwt_jwks_file: Option<PathBuf>, example("/etc/forebay/jwks.json"), reload(WITH_JWT);

        /// Claim with the user. This and the next three settings need one of the keys above.
        jwt_user_claim: Option<String>, unset("`sub`"), example("sub"), reload(WITH_JWT);

        /// Claim with the class of the user.
        jwt_class_claim: Option<String>, example("tier"), reload(WITH_JWT);

        /// Issuers whose tokens are accepted.
        jwt_issuers: Option<Vec<String>>,
            unset("any"),
            example(r#"["https://issuer.example"]"#),
            reload(WITH_JWT);

        /// Audiences whose tokens are accepted.
        jwt_audiences: Option<Vec<String>>,
            unset("none, and tokens with an audience are refused, as RFC 7519 requires"),
            example(r#"["https://api.example"]"#),
            reload(WITH_JWT);

        /// File with API keys, one line `SHA256 USER [CLASS]` for each. `printf %s KEY | sha256sum`
        /// prints the hash.
        api_keys_file: Option<PathBuf>, example("/etc/forebay/api.keys"), reload(WITH_API_KEYS);

        /// Header with the API key. It needs `api_keys_file`. A header that was a label of
        /// `gate.metric_labels` at the start needs a restart.
        api_key_header: Option<HeaderName>,
            unset("`X-API-Key`"),
            example("X-API-Key"),
            reload(WITH_SAME_METHODS);

        /// Header in which trusted proxies send the user, such as `X-User-ID`. It needs
        /// `trusted_proxies`.
        user_header: Option<HeaderName>,
            example("X-User-ID"),
            reload(WITH_SAME_METHODS);

        /// Header in which trusted proxies send the class of the user. It needs `user_header`.
        class_header: Option<HeaderName>,
            example("X-User-Class"),
            reload(WITH_SAME_METHODS);

        /// Identifies all other clients by their IP address (IPv6: the /64 network). Many users may
        /// share an address.
        by_address: bool = false, reload(WITH_SAME_METHODS);
    }
}
