//! Text output of `forebay dev`, and the page at `/`.

use std::fmt;
use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;

use super::dev_addresses::DevAddresses;
use crate::html_page::HtmlPage;

/// Returns a page that shows a table live, with the same requests as any client.
pub(super) fn home_page() -> Response<Bytes> {
    static HOME: LazyLock<HtmlPage> = LazyLock::new(|| {
        HtmlPage::new(include_str!("page.html"), include_str!("page.css"), include_str!("page.js"))
    });
    HOME.response()
}

/// Text that is printed at the start, with the address for clients first.
#[derive(Debug)]
pub(super) struct StartupBanner<'a> {
    pub(super) addresses: &'a DevAddresses,
    /// Whether the database is the temporary one, with sample data.
    pub(super) has_sample: bool,
    /// Whether replication has started.
    pub(super) is_ready: bool,
    /// Reason why replication has not started, if it is known.
    pub(super) trouble: Option<String>,
}

impl fmt::Display for StartupBanner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DevAddresses { clients, admin, taken } = self.addresses;
        let table = if self.has_sample { "orders" } else { "YOUR_TABLE" };
        writeln!(f, "\nClients    http://{clients}    open it to see a table, live")?;
        writeln!(f, "Dashboard  http://{admin}")?;
        if !taken.is_empty() {
            let ports: Vec<String> = taken.iter().map(ToString::to_string).collect();
            writeln!(
                f,
                "           (another program uses {}: these are the next free ports)",
                ports.join(" and ")
            )?;
        }
        if !self.is_ready {
            let why = self.trouble.as_deref().unwrap_or("it takes longer than usual");
            writeln!(f, "\nReplication has not started yet, and is retried: {why}")?;
        }
        writeln!(f, "\nTry        curl 'http://{clients}/v1/shape?table={table}&offset=-1'")?;
        writeln!(f, "\nOr save these five lines as live.html and open the file:\n")?;
        for line in five_lines(clients, table) {
            writeln!(f, "{line}")?;
        }
        let end = if self.has_sample { "the temporary Postgres" } else { "its slot and its publication" };
        writeln!(f, "\nCtrl-C ends the server and removes {end}.")
    }
}

/// Returns a client of five lines, without a library.
fn five_lines(clients: &str, table: &str) -> [String; 5] {
    [
        "<pre id=list></pre><script type=module>".to_owned(),
        format!("const url = 'http://{clients}/v1/shape?table={table}', rows = {{}}; let at = 'offset=-1'"),
        "for (;;) { const r = await fetch(url + '&' + at, { cache: 'no-store' }), h = (name) => r.headers.get('electric-' + name)"
            .to_owned(),
        "for (const { key, value, headers } of await r.json()) key && (headers.operation == 'delete' ? delete rows[key] : rows[key] = { ...rows[key], ...value })"
            .to_owned(),
        "at = `offset=${h('offset')}&handle=${h('handle')}${h('up-to-date') === null ? '' : '&live=true'}`; list.innerText = Object.values(rows).map((row) => JSON.stringify(row)).join('\\n') }</script>"
            .to_owned(),
    ]
}
