//! Settings of `[http]`.

use std::time::Duration;

use crate::config::electric_variables::time;
use crate::config::settings_macro::settings;

settings! {
    /// Connections of clients.
    HttpSection: "http" {
        /// Maximum number of open client connections. Above it, a new connection gets 503 and is
        /// closed; with TLS, it is closed without a response.
        max_connections: u32 = 16_384, at_least(1);

        /// Time in which the head of a request must arrive; then 408. It bounds what a slow-loris
        /// client costs.
        header_timeout_ms: Duration = 10_000;

        /// Maximum size of the head of a request; above it 431. The default is four times the limit
        /// of common servers. A smaller limit would refuse ordinary browsers; with a larger one,
        /// every client could use that much memory.
        max_header_bytes: u32 = 32_768, bounds(8_192, 16_777_216);

        /// Maximum number of headers of a request; above it 431. Each request allocates space for
        /// all of them.
        max_headers: u32 = 100, bounds(1, 1_024);

        /// Time after which a client that reads nothing of its response is disconnected.
        write_timeout_ms: Duration = 30_000, electric("ELECTRIC_TCP_SEND_TIMEOUT", time, "");

        /// Time after which an idle connection is closed.
        idle_timeout_ms: Duration = 60_000;

        /// Time that an idle connection stays open after SIGTERM, for a request that is already on
        /// the way. At most half of the time that the server has to close.
        drain_grace_ms: Duration = 500;
    }
}
