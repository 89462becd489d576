//! Checked settings of `[admission]`.

use std::collections::BTreeMap;

use forebay_admission::{AdaptiveSignals, Admission, Builder, Class, MemoryBound, StreamLimits};
use forebay_settings::{SettingLayers, ValueError};

use super::sections::AdmissionSection;

/// Limits for streams.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// Builder with all admission settings.
    pub builder: Builder,
    /// Maximum number of streams in the cluster.
    pub total: u32,
    /// The total limit and the limit for each user.
    pub limits: StreamLimits,
    /// Explicit limit for each user; `None` if the default applies.
    pub per_user: Option<u32>,
    /// Shares of the total above which classes are refused, in percent.
    shares: BTreeMap<String, u8>,
}

impl AdmissionConfig {
    /// Checks the section. `has_identity` is whether an identity method is configured. `signals`
    /// lower the adaptive limit.
    pub(super) fn check(
        section: AdmissionSection,
        has_identity: bool,
        signals: AdaptiveSignals,
        layers: &SettingLayers,
    ) -> Result<AdmissionConfig, ValueError> {
        let AdmissionSection { total, per_user, degraded_percent, critical_percent, .. } = section;
        if critical_percent < degraded_percent {
            let why = format!("must not be below admission.degraded_percent, which is {degraded_percent}");
            return Err(layers.error("admission.critical_percent", critical_percent.to_string(), why));
        }
        let mut builder = Admission::builder()
            .total(total)
            .per_user(per_user)
            .thresholds(degraded_percent, critical_percent)
            .wait(section.wait_ms)
            .max_waiting(section.max_waiting as usize, section.max_waiting_per_user as usize)
            .shed_by_memory(match section.max_memory_percent {
                0 => MemoryBound::Off,
                memory => MemoryBound::Fraction(f64::from(memory) / 100.0),
            });
        if let Some(cpu) = section.max_cpu_percent {
            builder = builder.shed_by_cpu(f64::from(cpu) / 100.0);
        }
        if let Some(floor) = section.adaptive_floor {
            if floor > total {
                let why = format!("must not be above admission.total, which is {total}");
                return Err(layers.error("admission.adaptive_floor", floor.to_string(), why));
            }
            builder = builder.adaptive(floor, signals);
        }
        if let Some(key) = &section.user_hash_key {
            builder = builder.log_salt(key.reveal().as_bytes());
        }
        // Without an identity method, a reserve for users would never be used.
        let anonymous = (Class::ANONYMOUS.as_str().to_owned(), if has_identity { 90 } else { 100 });
        let mut shares = BTreeMap::from([anonymous]);
        shares.extend(section.class_percent.unwrap_or_default());
        for (class, share) in &shares {
            builder = builder.class(Class::new(class), *share);
        }
        let explicit_per_user = layers.get("admission.per_user").map(|_| per_user);
        let limits = StreamLimits { total, per_user };
        Ok(AdmissionConfig { builder, total, limits, per_user: explicit_per_user, shares })
    }

    /// Returns the configured classes with their shares of the total, in percent.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&str, u8)> {
        self.shares.iter().map(|(class, share)| (class.as_str(), *share))
    }

    /// Returns the share of the total above which a class is refused, in percent.
    pub(crate) fn share(&self, class: &Class) -> u8 {
        self.shares.get(class.as_str()).copied().unwrap_or(100)
    }
}
