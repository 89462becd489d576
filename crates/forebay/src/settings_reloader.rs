//! Reloads settings on SIGHUP, without a restart: limits, secrets, keys, the certificate, the log
//! filter and the level of stage lines.
//!
//! Invariant: invalid settings change nothing. A setting that needs a restart keeps its value, and
//! its key is logged. A secret can be changed or added, but not removed, so no reload makes an
//! address accessible without a secret. The log has keys, never values.
//!
//! The declaration of a setting (`config/sections/`) has what a reload does with it. Certificates
//! are reloaded, too, from the files with the paths at the start; see `tls.rs`.

use std::fmt;
use std::sync::Arc;

use forebay_admission::{Admission, Identifier, Secret, StageLevel, StreamLimits};
use forebay_serve::AccessControl;
use forebay_settings::Reload;
use http::HeaderName;
use tracing::{error, info, warn};

use crate::config::{
    self, ConfigError, ExplicitSettings, GateConfig, IdentityConfig, SAME_METHODS, ServeConfig,
};
use crate::logging;
use crate::secret_guard::SecretGuard;
use crate::tls::TlsCertificate;

/// Settings of a server that can change while it runs.
pub(crate) struct ReloadableSettings {
    explicit_settings: ExplicitSettings,
    limits: StreamLimits,
    identity: IdentityConfig,
    secret: Option<Secret>,
    admin_secret: Option<Secret>,
    filter: String,
    stages: StageLevel,
}

impl From<ServeConfig> for ReloadableSettings {
    fn from(config: ServeConfig) -> ReloadableSettings {
        let ServeConfig { explicit_settings, admission, identity, secret, admin_secret, log, .. } = config;
        ReloadableSettings {
            explicit_settings,
            limits: admission.limits,
            identity,
            secret,
            admin_secret,
            filter: log.filter,
            stages: log.stages,
        }
    }
}

impl From<GateConfig> for ReloadableSettings {
    fn from(config: GateConfig) -> ReloadableSettings {
        let GateConfig { explicit_settings, admission, identity, admin_secret, log, .. } = config;
        ReloadableSettings {
            explicit_settings,
            limits: admission.limits,
            identity,
            secret: None,
            admin_secret,
            filter: log.filter,
            stages: log.stages,
        }
    }
}

/// Function that reads the settings again, from file, environment and flags.
type LoadSettings = dyn Fn() -> Result<ReloadableSettings, ConfigError> + Send + Sync;

/// Applies new settings to the components that use them.
pub(crate) struct SettingsReloader {
    load: Option<Arc<LoadSettings>>,
    /// Settings at the start.
    start: ExplicitSettings,
    /// Settings of the last successful load.
    last: ExplicitSettings,
    /// Identity methods and user headers at the start.
    methods_and_headers: (Vec<&'static str>, Vec<HeaderName>),
    /// Headers whose values are labels of metrics until the next start.
    label_headers: Vec<HeaderName>,
    admission: Admission,
    identify: Identifier,
    guard: SecretGuard,
    access: Option<AccessControl>,
    tls: Option<Arc<TlsCertificate>>,
}

impl SettingsReloader {
    pub(crate) fn new(
        explicit_settings: &ExplicitSettings,
        identity: &IdentityConfig,
        admission: Admission,
        guard: SecretGuard,
    ) -> SettingsReloader {
        SettingsReloader {
            load: None,
            start: explicit_settings.clone(),
            last: explicit_settings.clone(),
            methods_and_headers: (identity.methods.clone(), identity.user_headers.clone()),
            label_headers: Vec::new(),
            admission,
            identify: identity.identify.clone(),
            guard,
            access: None,
            tls: None,
        }
    }

    pub(crate) fn access(mut self, access: AccessControl) -> Self {
        self.access = Some(access);
        self
    }

    pub(crate) fn label_headers(mut self, headers: Vec<HeaderName>) -> Self {
        self.label_headers = headers;
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

    /// Reads the certificate and the settings again, and applies the reloadable ones.
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
        let ReloadableSettings { explicit_settings, limits, identity, secret, admin_secret, filter, stages } =
            settings;
        let changed = |key: &str| self.last.changed_keys(&explicit_settings).contains(&key);
        // Other components use these keys, too, and read them only at the start.
        let affects_other_components =
            |key: &&str| key.ends_with(".trusted_proxies") || key.ends_with(".forwarded_by");
        // API keys must not become values of a metric.
        let key_is_label = identity.api_key_header.iter().any(|name| self.label_headers.contains(name));
        let same_methods = self.methods_and_headers
            == (identity.methods.clone(), identity.user_headers.clone())
            && !key_is_label
            && !self.start.changed_keys(&explicit_settings).iter().any(affects_other_components);
        if changed("admission.total") || changed("admission.per_user") {
            self.admission.set_limits(limits);
        }
        self.admission.set_stage_level(stages);
        match same_methods {
            true => self.identify.replace(&identity.identify),
            // A revoked key must stop working even if another change needs a restart.
            false => self.identify.renew_keys(&identity.identify),
        }
        if admin_secret.is_some() {
            self.guard.set(admin_secret.clone());
        }
        if let (Some(access), Some(secret)) = (&self.access, &secret) {
            access.change(|access| access.secret = Some(secret.clone()));
        }
        let keys_renewed =
            |method: &str| self.methods_and_headers.0.contains(&method) && identity.methods.contains(&method);
        let is_applied = |key: &&str| match config::setting(key).map(|setting| setting.reload) {
            Some(Reload::Applied(_)) => true,
            Some(Reload::AppliedUnlessRemoved) => explicit_settings.contains(key),
            Some(Reload::AppliedIf(SAME_METHODS)) => same_methods,
            Some(Reload::AppliedIf(method)) => same_methods || keys_renewed(method),
            Some(Reload::NeedsRestart) | None => false,
        };
        let applied: Vec<&str> =
            self.last.changed_keys(&explicit_settings).into_iter().filter(is_applied).collect();
        let deferred: Vec<&str> =
            self.start.changed_keys(&explicit_settings).into_iter().filter(|key| !is_applied(key)).collect();
        info!(changed = applied.join(" "), "settings reloaded");
        if !deferred.is_empty() {
            warn!(keys = deferred.join(" "), "settings not applied: restart required");
        }
        // Last, so that the old filter applies to the lines above.
        if self.last.changed_keys(&explicit_settings).contains(&"log.filter")
            && let Err(error) = logging::set_filter(&filter)
        {
            error!(error, "log filter not replaced");
        }
        self.last = explicit_settings;
    }
}

impl fmt::Debug for SettingsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsReloader")
            .field("methods_and_headers", &self.methods_and_headers)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReloadableSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadableSettings").field("limits", &self.limits).finish_non_exhaustive()
    }
}
