//! Settings of `[admin]`.

use forebay_admission::Secret;
use forebay_settings::{OptionalAddress, Reload};

use crate::config::electric_variables::loopback_address;
use crate::config::settings_macro::settings;

settings! {
    /// The admin address, for operators.
    AdminSection: "admin" {
        /// Address for operators, or `off`: the dashboard (`/`), `/healthz`, `/readyz`, `/metrics`,
        /// `/v1/status` and `/v1/streams`. The default is the port after the one for clients.
        /// `/readyz` of a gate is 503 while the gate drains. With the policy `closed`, it is also
        /// 503 at its start while the counts are rebuilt.
        listen: OptionalAddress = "127.0.0.1:3001",
            gate_default(|| "127.0.0.1:8081".into()),
            flag("--admin", "IP:PORT"),
            electric(
                "ELECTRIC_PROMETHEUS_PORT",
                loopback_address,
                "`/metrics` on the admin address, for this machine only; for other machines, set admin.listen",
            );

        /// Password of the admin address: with any user name (a browser asks for it), or as
        /// `Authorization: Bearer`. Better set it in the variable. `/healthz` and the status of
        /// `/readyz` need no password; the reason in `/readyz` and everything else does. Without
        /// it, `listen` must be a loopback address, unless `insecure` is set, and no stream can be
        /// ended with `/v1/streams/end`.
        secret: Option<Secret>, example("long and random"), reload(Reload::AppliedUnlessRemoved);

        /// Allows an admin address that other machines can reach, without a secret. Every client
        /// that can connect can then read the status and the metrics.
        insecure: bool = false, flag("--insecure-admin", "");
    }
}
