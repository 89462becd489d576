//! What `forebay dev` says, and the page at `/`.

use std::fmt;
use std::sync::LazyLock;

use bytes::Bytes;
use http::Response;

use super::settings::Addresses;
use crate::html_page::HtmlPage;

/// A page that shows a table as it changes; the same requests as any client's.
pub(super) fn home() -> Response<Bytes> {
    static HOME: LazyLock<HtmlPage> = LazyLock::new(|| {
        HtmlPage::new(include_str!("page.html"), include_str!("page.css"), include_str!("page.js"))
    });
    HOME.response()
}

/// What is printed at the start: the clients' address first.
#[derive(Debug)]
pub(super) struct Words<'a> {
    pub(super) addresses: &'a Addresses,
    pub(super) has_sample: bool,
    pub(super) is_ready: bool,
    pub(super) trouble: Option<String>,
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Addresses { clients, admin, taken } = self.addresses;
        let table = if self.has_sample { "orders" } else { "YOUR_TABLE" };
        writeln!(f, "\nClients    http://{clients}    open it: a table, live")?;
        writeln!(f, "Dashboard  http://{admin}")?;
        if !taken.is_empty() {
            let ports: Vec<String> = taken.iter().map(ToString::to_string).collect();
            writeln!(
                f,
                "           (another program has {}, so these are the next free ones)",
                ports.join(" and ")
            )?;
        }
        if !self.is_ready {
            let why = self.trouble.as_deref().unwrap_or("it takes longer than usual");
            writeln!(f, "\nThe database isn't followed yet, and is tried on: {why}")?;
        }
        writeln!(f, "\nTry        curl 'http://{clients}/v1/shape?table={table}&offset=-1'")?;
        writeln!(f, "\nOr save these five lines as live.html and open it:\n")?;
        for line in five_lines(clients, table) {
            writeln!(f, "{line}")?;
        }
        let end = if self.has_sample { "Postgres too" } else { "slot and publication too" };
        writeln!(f, "\nCtrl-C ends it all, {end}, and leaves nothing behind.")
    }
}

/// A client without a library.
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
