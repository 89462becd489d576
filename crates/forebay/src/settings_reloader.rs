//! Reloads settings on SIGHUP, without a restart: limits, secrets, keys, the certificate and the
//! log filter.
//!
//! Invariant: invalid settings change nothing. Settings that need a restart are logged by key, and
//! keep their value. No reload opens an address that was closed: a secret can be changed or added,
//! but not removed. The log has keys, never values.
//!
//! | setting | takes effect |
//! |---|---|
//! | `admission.total`, `admission.per_user` | at once; open streams continue |
//! | `serve.secret`, `admin.secret` | with the next request |
//! | keys of tokens and API keys (`identity.jwt_*`, `identity.api_key*`), with their files | with the next request |
//! | the rest of `identity.*`, if the identity methods stay the same | with the next request |
//! | `log.filter` | with the next line |
//! | the certificate's files | with the next connection, see `tls.rs` |

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_admission::{Admission, Identify, Secret, StreamLimits};
use forebay_serve::protocol::Access;
use http::HeaderName;
use tracing::{error, info, warn};

use crate::config::{ConfigError, ExplicitSettings, GateConfig, IdentityConfig, ServeConfig};
use crate::logging;
use crate::secret_guard::SecretGuard;
use crate::tls::TlsCertificate;

/// Settings of a server that can change while it runs.
pub(crate) struct ReloadableSettings {
    said: ExplicitSettings,
    limits: StreamLimits,
    identity: IdentityConfig,
    secret: Option<Secret>,
    admin_secret: Option<Secret>,
    filter: String,
}

impl From<ServeConfig> for ReloadableSettings {
    fn from(config: ServeConfig) -> ReloadableSettings {
        let ServeConfig { explicit_settings: said, admission, identity, secret, admin_secret, log, .. } =
            config;
        ReloadableSettings {
            said,
            limits: admission.limits,
            identity,
            secret,
            admin_secret,
            filter: log.filter,
        }
    }
}

impl From<GateConfig> for ReloadableSettings {
    fn from(config: GateConfig) -> ReloadableSettings {
        let GateConfig { explicit_settings: said, admission, identity, admin_secret, log, .. } = config;
        ReloadableSettings {
            said,
            limits: admission.limits,
            identity,
            secret: None,
            admin_secret,
            filter: log.filter,
        }
    }
}

/// Reads the settings again from file, environment and flags.
type LoadSettings = dyn Fn() -> Result<ReloadableSettings, ConfigError> + Send + Sync;

/// Applies new settings to the components that use them.
pub(crate) struct SettingsReloader {
    load: Option<Arc<LoadSettings>>,
    /// Settings at the start.
    start: ExplicitSettings,
    /// Settings of the last successful load.
    last: ExplicitSettings,
    /// Identity methods and user headers at the start.
    ways: (Vec<&'static str>, Vec<HeaderName>),
    admission: Admission,
    identify: Identify,
    guard: SecretGuard,
    access: Option<Arc<RwLock<Access>>>,
    tls: Option<Arc<TlsCertificate>>,
}

impl SettingsReloader {
    pub(crate) fn new(
        said: &ExplicitSettings,
        identity: &IdentityConfig,
        admission: Admission,
        guard: SecretGuard,
    ) -> SettingsReloader {
        SettingsReloader {
            load: None,
            start: said.clone(),
            last: said.clone(),
            ways: (identity.methods.clone(), identity.user_headers.clone()),
            admission,
            identify: identity.identify.clone(),
            guard,
            access: None,
            tls: None,
        }
    }

    pub(crate) fn access(mut self, access: Arc<RwLock<Access>>) -> Self {
        self.access = Some(access);
        self
    }

    pub(crate) fn tls(mut self, tls: Option<Arc<TlsCertificate>>) -> Self {
        self.tls = tls;
        self
    }

    /// Sets the function that reads the settings. Without it, only the certificate is reloaded.
    pub(crate) fn load<C: Into<ReloadableSettings>>(
        &mut self,
        load: impl Fn() -> Result<C, ConfigError> + Send + Sync + 'static,
    ) {
        self.load = Some(Arc::new(move || load().map(Into::into)));
    }

    /// Reads the certificate and the settings again, and applies what can change.
    pub(crate) async fn reload(&mut self) {
        if let Some(tls) = &self.tls {
            tls.reload().await;
        }
        let Some(load) = self.load.clone() else { return };
        match tokio::task::spawn_blocking(move || load()).await {
            Ok(Ok(settings)) => self.apply(settings),
            Ok(Err(error)) => error!(%error, "settings not reloaded: previous settings kept"),
            Err(_) => {} // the runtime is shutting down
        }
    }

    /// Applies the settings, and logs which keys took effect and which need a restart.
    fn apply(&mut self, settings: ReloadableSettings) {
        let ReloadableSettings { said, limits, identity, secret, admin_secret, filter } = settings;
        let changed = |key: &str| self.last.changed_keys(&said).contains(&key);
        // These keys also decide outside of `identify` which peers may name users.
        let affects_other_components =
            |key: &&str| key.ends_with(".trusted_proxies") || key.ends_with(".forwarded_by");
        let same_ways = self.ways == (identity.methods.clone(), identity.user_headers.clone())
            && !self.start.changed_keys(&said).iter().any(affects_other_components);
        if changed("admission.total") || changed("admission.per_user") {
            self.admission.set_limits(limits);
        }
        match same_ways {
            true => self.identify.replace(&identity.identify),
            // A revoked key must stop working even if another change needs a restart.
            false => self.identify.renew_keys(&identity.identify),
        }
        if admin_secret.is_some() {
            self.guard.set(admin_secret.clone());
        }
        if let (Some(access), Some(secret)) = (&self.access, &secret) {
            access.write().unwrap_or_else(PoisonError::into_inner).secret = Some(secret.clone());
        }
        let keys_renewed = |way: &str| self.ways.0.contains(&way) && identity.methods.contains(&way);
        let is_applied = |key: &str| match key {
            "admission.total" | "admission.per_user" | "log.filter" => true,
            "serve.secret" => secret.is_some(),
            "admin.secret" => admin_secret.is_some(),
            key if key.starts_with("identity.jwt_") && keys_renewed("jwt") => true,
            key if key.starts_with("identity.api_key") && keys_renewed("api_key") => true,
            key => same_ways && key.starts_with("identity."),
        };
        let applied: Vec<&str> =
            self.last.changed_keys(&said).into_iter().filter(|key| is_applied(key)).collect();
        let deferred: Vec<&str> =
            self.start.changed_keys(&said).into_iter().filter(|key| !is_applied(key)).collect();
        info!(changed = applied.join(" "), "settings reloaded");
        if !deferred.is_empty() {
            warn!(keys = deferred.join(" "), "settings changed that need a restart");
        }
        // Last, so that the lines above are written under the filter that was in force before.
        if self.last.changed_keys(&said).contains(&"log.filter")
            && let Err(error) = logging::set_filter(&filter)
        {
            error!(error, "log filter not replaced");
        }
        self.last = said;
    }
}

impl fmt::Debug for SettingsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsReloader").field("ways", &self.ways).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReloadableSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadableSettings").field("limits", &self.limits).finish_non_exhaustive()
    }
}
