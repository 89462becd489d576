//! Settings that change while we run: limits, secrets, keys and the log's filter are read again on SIGHUP.
//!
//! Invariant: settings that can't be used change nothing; what can't be changed at run time is named, and stays; and no reload opens what was closed:
//! a secret may be changed or added, but to take one away needs a restart, since the address that it guards stays what it was.
//! Logs have keys, never values.
//!
//! | what | when it holds |
//! |---|---|
//! | `admission.total`, `admission.per_user` | at once; open streams go on |
//! | `serve.secret`, `admin.secret` | for the next request |
//! | keys of tokens and API keys (`identity.jwt_*`, `identity.api_key*`), with the files that they name | for the next request |
//! | the rest of `identity.*`, if the ways to know a user stay the same | for the next request |
//! | `log.filter` | for the next line |
//! | the files of the certificate | for the next connection, see `tls.rs` |

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_admission::{Admission, Identify, Secret, StreamLimits};
use forebay_serve::protocol::Access;
use http::HeaderName;
use tracing::{error, info, warn};

use crate::config::{ConfigError, ExplicitSettings, GateConfig, IdentityConfig, ServeConfig};
use crate::guard::Guard;
use crate::logging;
use crate::tls::Tls;

/// What of a command's settings may change.
pub(crate) struct Fresh {
    said: ExplicitSettings,
    limits: StreamLimits,
    identity: IdentityConfig,
    secret: Option<Secret>,
    admin_secret: Option<Secret>,
    filter: String,
}

impl From<ServeConfig> for Fresh {
    fn from(config: ServeConfig) -> Fresh {
        let ServeConfig { explicit_settings: said, admission, identity, secret, admin_secret, log, .. } =
            config;
        Fresh { said, limits: admission.limits, identity, secret, admin_secret, filter: log.filter }
    }
}

impl From<GateConfig> for Fresh {
    fn from(config: GateConfig) -> Fresh {
        let GateConfig { explicit_settings: said, admission, identity, admin_secret, log, .. } = config;
        Fresh { said, limits: admission.limits, identity, secret: None, admin_secret, filter: log.filter }
    }
}

type Load = dyn Fn() -> Result<Fresh, ConfigError> + Send + Sync;

/// Who is told of new settings.
pub(crate) struct Reload {
    load: Option<Arc<Load>>,
    /// As they were at the start, and as they were read last.
    start: ExplicitSettings,
    last: ExplicitSettings,
    ways: (Vec<&'static str>, Vec<HeaderName>),
    admission: Admission,
    identify: Identify,
    guard: Guard,
    access: Option<Arc<RwLock<Access>>>,
    tls: Option<Arc<Tls>>,
}

impl Reload {
    pub(crate) fn new(
        said: &ExplicitSettings,
        identity: &IdentityConfig,
        admission: Admission,
        guard: Guard,
    ) -> Reload {
        Reload {
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

    pub(crate) fn tls(mut self, tls: Option<Arc<Tls>>) -> Self {
        self.tls = tls;
        self
    }

    /// How settings are read again; without it, only the certificate is.
    pub(crate) fn load<C: Into<Fresh>>(
        &mut self,
        load: impl Fn() -> Result<C, ConfigError> + Send + Sync + 'static,
    ) {
        self.load = Some(Arc::new(move || load().map(Into::into)));
    }

    /// Reads everything again.
    pub(crate) async fn reload(&mut self) {
        if let Some(tls) = &self.tls {
            tls.reload().await;
        }
        let Some(load) = self.load.clone() else { return };
        match tokio::task::spawn_blocking(move || load()).await {
            Ok(Ok(fresh)) => self.adopt(fresh),
            Ok(Err(error)) => error!(%error, "the settings can't be read again: all stays as it was"),
            Err(_) => {} // the runtime ends
        }
    }

    fn adopt(&mut self, fresh: Fresh) {
        let Fresh { said, limits, identity, secret, admin_secret, filter } = fresh;
        let changed = |key: &str| self.last.changed_keys(&said).contains(&key);
        // Who is trusted to name users decides elsewhere, too.
        let is_elsewhere = |key: &&str| key.ends_with(".trusted_proxies") || key.ends_with(".forwarded_by");
        let same_ways = self.ways == (identity.methods.clone(), identity.user_headers.clone())
            && !self.start.changed_keys(&said).iter().any(is_elsewhere);
        if changed("admission.total") || changed("admission.per_user") {
            self.admission.set_limits(limits);
        }
        match same_ways {
            true => self.identify.replace(&identity.identify),
            // A key that was revoked must not go on to open because something else needs a restart.
            false => self.identify.renew_keys(&identity.identify),
        }
        if admin_secret.is_some() {
            self.guard.set(admin_secret.clone());
        }
        if let (Some(access), Some(secret)) = (&self.access, &secret) {
            access.write().unwrap_or_else(PoisonError::into_inner).secret = Some(secret.clone());
        }
        let is_renewed = |way: &str| self.ways.0.contains(&way) && identity.methods.contains(&way);
        let holds = |key: &str| match key {
            "admission.total" | "admission.per_user" | "log.filter" => true,
            "serve.secret" => secret.is_some(),
            "admin.secret" => admin_secret.is_some(),
            key if key.starts_with("identity.jwt_") && is_renewed("jwt") => true,
            key if key.starts_with("identity.api_key") && is_renewed("api_key") => true,
            key => same_ways && key.starts_with("identity."),
        };
        let now: Vec<&str> = self.last.changed_keys(&said).into_iter().filter(|key| holds(key)).collect();
        let later: Vec<&str> = self.start.changed_keys(&said).into_iter().filter(|key| !holds(key)).collect();
        info!(changed = now.join(" "), "the settings were read again");
        if !later.is_empty() {
            warn!(keys = later.join(" "), "settings have changed that hold only after a restart");
        }
        // Last, so that what was read is told under the filter that held when it was read.
        if self.last.changed_keys(&said).contains(&"log.filter")
            && let Err(error) = logging::set_filter(&filter)
        {
            error!(error, "the log's filter stays as it was");
        }
        self.last = said;
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reload").field("ways", &self.ways).finish_non_exhaustive()
    }
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").field("limits", &self.limits).finish_non_exhaustive()
    }
}
