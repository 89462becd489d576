//! Checked settings of `[admission]`.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_admission::{Admission, Builder, Class, MemoryBound, StreamLimits};

use super::settings_file::AdmissionSection;
use super::value_reader::{ValueError, ValueReader};

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
    /// Checks the section. `per_user` is the default limit for each user. `has_identity` is whether
    /// an identity method is configured.
    pub(super) fn check(
        section: &AdmissionSection,
        per_user: u32,
        has_identity: bool,
        reader: &ValueReader,
    ) -> Result<AdmissionConfig, ValueError> {
        let total = reader.count("admission.total", section.total, 10_000)?;
        let per_user = reader.count("admission.per_user", section.per_user, per_user)?;
        let degraded = percent(reader, "admission.degraded_percent", section.degraded_percent.unwrap_or(70))?;
        let critical = percent(reader, "admission.critical_percent", section.critical_percent.unwrap_or(90))?;
        if critical < degraded {
            let why = format!("must not be below admission.degraded_percent, which is {degraded}");
            return Err(reader.error("admission.critical_percent", critical.to_string(), why));
        }
        let waiting = reader.count("admission.max_waiting", section.max_waiting, 1_024)?;
        let waiting_per_user =
            reader.count("admission.max_waiting_per_user", section.max_waiting_per_user, 8)?;
        let wait = match section.wait_ms {
            None | Some(0) => Duration::ZERO,
            given => reader.duration("admission.wait_ms", given, Duration::ZERO)?,
        };
        let memory =
            percent(reader, "admission.max_memory_percent", section.max_memory_percent.unwrap_or(95))?;
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
            let cpu = percent(reader, "admission.max_cpu_percent", cpu)?;
            builder = builder.shed_by_cpu(f64::from(cpu) / 100.0);
        }
        // Without an identity method, a reserve for users would never be used.
        let anonymous = (Class::ANONYMOUS.as_str().to_owned(), if has_identity { 90 } else { 100 });
        let mut shares = BTreeMap::from([anonymous]);
        shares.extend(section.class_percent.clone().unwrap_or_default());
        for (class, share) in &shares {
            builder = builder.class(Class::new(class), percent(reader, "admission.class_percent", *share)?);
        }
        let limits = StreamLimits { total, per_user };
        Ok(AdmissionConfig { builder, total, limits, per_user: section.per_user, shares })
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

fn percent(reader: &ValueReader, key: &'static str, given: u8) -> Result<u8, ValueError> {
    if given > 100 {
        return Err(reader.error(key, given.to_string(), "must be a percentage, 0 to 100"));
    }
    Ok(given)
}
