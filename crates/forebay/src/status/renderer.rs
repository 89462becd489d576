//! Renders a status as lines of text. Pure.

use std::fmt::Write as _;

use serde_json::Value;

use crate::numbers::{duration, grouped, size};
use crate::terminal::{Paint, Tone, escape_controls};

/// Width of the admission bar, in characters.
const BAR_WIDTH: usize = 30;

/// Returns the complete text. Missing fields are left out.
pub(super) fn render(status: &Value, paint: Paint) -> String {
    let mut renderer = StatusRenderer { out: String::new(), paint };
    renderer.head(status);
    renderer.database(&status["database"]);
    renderer.positions(&status["positions"]);
    renderer.pools(status);
    renderer.gate(&status["gate"]);
    let admission = [&status["admission"], &status["statistics"]];
    admission
        .into_iter()
        .find(|admission| admission["max_connections"].is_u64())
        .into_iter()
        .for_each(|admission| renderer.admission(admission));
    renderer.adaptive(&status["admission"]["adaptive"]);
    renderer.quota([&status["quota"], &status["admission"]["quota"]]);
    renderer.shapes(&status["shapes"]);
    renderer.http(&status["http"]);
    renderer.out
}

/// Output so far, one method for each section of the status.
struct StatusRenderer {
    out: String,
    paint: Paint,
}

impl StatusRenderer {
    fn head(&mut self, status: &Value) {
        let command = text(&status["command"]);
        let listen =
            [&status["listen"], &status["gate"]["listen"]].into_iter().find(|listen| listen.is_string());
        let up_ms = number(&status["uptime_ms"])
            .or_else(|| number(&status["uptime_seconds"]).map(|seconds| seconds.saturating_mul(1000)));
        let name = self.paint.tone(Tone::Strong, &format!("forebay {command}"));
        let _ = write!(self.out, "{name} at {}", listen.map(text).unwrap_or_default());
        if let Some(up_ms) = up_ms {
            let _ = write!(self.out, ", up for {}", duration(up_ms));
        }
        self.out.push('\n');
        if let Some(ready) = status["ready"].as_bool() {
            let (tone, word) = match (ready, status["health"].as_str()) {
                (true, Some("waiting")) => (
                    Tone::Good,
                    "ready: another instance follows the database, this one serves what it writes",
                ),
                (true, _) => (Tone::Good, "ready"),
                (false, _) => (Tone::Bad, "not ready"),
            };
            let why = status["why_not_ready"]
                .as_str()
                .map(|why| format!(": {}", escape_controls(why)))
                .unwrap_or_default();
            let word = self.paint.tone(tone, word);
            self.line("state", &format!("{word}{why}"));
        }
    }

    fn database(&mut self, database: &Value) {
        if !database.is_object() {
            return;
        }
        let step_for = number(&database["step_for_ms"]).map(duration).unwrap_or_default();
        let phase = format!("{}, {} for {step_for}", text(&database["phase"]), text(&database["step"]));
        self.line("phase", &phase);
        if let Some(trouble) = database["trouble"].as_str() {
            let trouble = self.paint.tone(Tone::Bad, &escape_controls(trouble));
            let tries = number(&database["retries"]).unwrap_or(0);
            let next = number(&database["retry_in_ms"])
                .map(|ms| format!(", next attempt in {} s", ms.div_ceil(1000)));
            self.line("trouble", &format!("{trouble} (tried {tries} times{})", next.unwrap_or_default()));
        }
        for condition in database["conditions"].as_array().into_iter().flatten() {
            let holds = condition["holds"] == true;
            let mark =
                if holds { self.paint.tone(Tone::Good, "yes") } else { self.paint.tone(Tone::Bad, "no ") };
            let since = number(&condition["for_ms"]).map(duration).unwrap_or_default();
            let why = self.paint.tone(Tone::Faint, &text(&condition["why"]));
            let _ = writeln!(self.out, "  {mark} {:<31} {since:>8}  {why}", text(&condition["condition"]));
        }
    }

    fn positions(&mut self, positions: &Value) {
        let Some(lag_bytes) = number(&positions["lag_bytes"]) else { return };
        let seconds = positions["lag"]["secs"].as_f64().unwrap_or(0.0);
        let lag_ms = seconds * 1e3 + positions["lag"]["nanos"].as_f64().unwrap_or(0.0) / 1e6;
        let retained = number(&positions["retained_bytes"]).map(size).unwrap_or_default();
        self.line(
            "lag",
            &format!(
                "{lag_ms:.0} ms, {} not durable yet, {retained} of WAL retained for the slot",
                size(lag_bytes)
            ),
        );
    }

    fn pools(&mut self, status: &Value) {
        let database = &status["database"];
        if let (Some(admin), Some(snapshot)) =
            (database["admin_pool"].as_str(), database["snapshot_pool"].as_str())
        {
            self.line(
                "pools",
                &format!("metadata {}, snapshots {}", escape_controls(admin), escape_controls(snapshot)),
            );
        }
        let counts = &status["reservoir"]["counts"];
        let states: Vec<_> = ["ready", "lent", "dialing", "resetting", "retiring"]
            .into_iter()
            .filter_map(|state| Some(format!("{} {state}", number(&counts[state])?)))
            .collect();
        if !states.is_empty() {
            self.line("reservoir", &states.join(", "));
        }
    }

    fn gate(&mut self, gate: &Value) {
        if !gate.is_object() {
            return;
        }
        let failing = if gate["upstream_failing"] == true {
            self.paint.tone(Tone::Bad, ", failing")
        } else {
            String::new()
        };
        self.line("upstream", &format!("{}{failing}", text(&gate["upstream"])));
        let (streams, plain) =
            (number(&gate["streams"]).unwrap_or(0), number(&gate["plain_requests"]).unwrap_or(0));
        let draining = if gate["draining"] == true {
            self.paint.tone(Tone::Careful, ", draining")
        } else {
            String::new()
        };
        self.line(
            "inside",
            &format!("{} streams, {} other requests{draining}", grouped(streams), grouped(plain)),
        );
    }

    fn admission(&mut self, admission: &Value) {
        let (now, most) = (
            number(&admission["total_connections"]).unwrap_or(0),
            number(&admission["max_connections"]).unwrap_or(0),
        );
        let state = text(&admission["state"]);
        let tone = match state.as_str() {
            "healthy" => Tone::Good,
            "degraded" => Tone::Careful,
            _ => Tone::Bad,
        };
        let filled = usize::try_from(now.saturating_mul(BAR_WIDTH as u64) / most.max(1))
            .unwrap_or(BAR_WIDTH)
            .min(BAR_WIDTH);
        let filled = filled.max(usize::from(now > 0));
        let bar =
            self.paint.tone(tone, &format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR_WIDTH - filled)));
        let state = self.paint.tone(tone, &state);
        self.line("admission", &format!("{bar} {} of {} streams, {state}", grouped(now), grouped(most)));
        if let Some(why) = admission["shedding"].as_str() {
            let why = self.paint.tone(Tone::Bad, &escape_controls(why));
            self.line("", &format!("refuses new streams: {why}"));
        }
    }

    fn adaptive(&mut self, adaptive: &Value) {
        let (Some(limit), Some(floor)) = (number(&adaptive["limit"]), number(&adaptive["floor"])) else {
            return;
        };
        let open = number(&adaptive["open"]).unwrap_or(0);
        let decrease = &adaptive["last_decrease"];
        let lowered = number(&decrease["seconds_ago"]).map(|seconds| {
            let (from, to) = (number(&decrease["from"]).unwrap_or(0), number(&decrease["to"]).unwrap_or(0));
            let ago = duration(seconds.saturating_mul(1000));
            format!(
                ", lowered from {} to {} {ago} ago: {}",
                grouped(from),
                grouped(to),
                text(&decrease["cause"])
            )
        });
        let (open, limit, floor) = (grouped(open), grouped(limit), grouped(floor));
        let lowered = lowered.unwrap_or_default();
        self.line("adaptive", &format!("{open} of at present {limit} streams here, floor {floor}{lowered}"));
    }

    fn quota(&mut self, candidates: [&Value; 2]) {
        let Some(quota) = candidates.into_iter().find(|quota| quota["mode"].is_string()) else { return };
        let mode = text(&quota["mode"]);
        let tone = if mode == "normal" { Tone::Good } else { Tone::Careful };
        let since = number(&quota["mode_since_ms"]).map(duration).unwrap_or_default();
        let members = match number(&quota["members"]).unwrap_or(1) {
            1 => "1 member".to_owned(),
            members => format!("{members} members"),
        };
        let why = quota["why"].as_str().map(|why| format!(": {}", escape_controls(why))).unwrap_or_default();
        let mode = self.paint.tone(tone, &mode);
        self.line(
            "quota",
            &format!("{mode} for {since}, {members}, stored in {}{why}", text(&quota["store"])),
        );
    }

    fn shapes(&mut self, shapes: &Value) {
        let Some(count) = number(&shapes["count"]) else { return };
        let bytes = number(&shapes["bytes"]).map(size).unwrap_or_default();
        let role = if shapes["writes"] == true { "this instance writes" } else { "another instance writes" };
        let full = if shapes["disk_full"] == true {
            self.paint.tone(Tone::Bad, ", the disk is full")
        } else {
            String::new()
        };
        let held = match number(&shapes["held"]).unwrap_or(0) {
            0 => String::new(),
            held => format!(", {} wait until Postgres has evaluated their clause", grouped(held)),
        };
        self.line("shapes", &format!("{}, {bytes}, {role}{held}{full}", grouped(count)));
        for shape in shapes["top"].as_array().into_iter().flatten().take(10) {
            let rows =
                number(&shape["rows"]).map(|rows| format!("{} rows, ", grouped(rows))).unwrap_or_default();
            let bytes = number(&shape["bytes"]).map(size).unwrap_or_default();
            let streams = number(&shape["streams"]).unwrap_or(0);
            let clause = shape["where"]
                .as_str()
                .map(|clause| format!(" where {}", escape_controls(clause)))
                .unwrap_or_default();
            let _ = writeln!(
                self.out,
                "  {}{clause}: {rows}{bytes}, {} streams",
                text(&shape["table"]),
                grouped(streams)
            );
        }
    }

    fn http(&mut self, http: &Value) {
        let Some(open) = number(&http["open_connections"]) else { return };
        let requests = number(&http["requests"]).or_else(|| number(&http["request"])).unwrap_or(0);
        self.line(
            "http",
            &format!("{} connections open, {} requests so far", grouped(open), grouped(requests)),
        );
    }

    fn line(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.out, "{name:<10} {value}");
    }
}

fn text(value: &Value) -> String {
    escape_controls(value.as_str().unwrap_or_default())
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_is_rendered_line_by_line() {
        let status = json!({
            "command": "serve", "listen": "127.0.0.1:3000", "uptime_ms": 3_661_000, "ready": false,
            "why_not_ready": "the database isn't followed yet",
            "database": {
                "phase": "connection_setup", "step": "acquiring_lock", "step_for_ms": 1500, "retries": 3, "retry_in_ms": 29_001,
                "trouble": "can't \u{1b}[31mconnect", "admin_pool": "starting", "snapshot_pool": "ready",
                "conditions": [
                    {"condition": "pg_lock_acquired", "holds": false, "for_ms": 61_000, "why": "another has it"},
                    {"condition": "replication_client_ready", "holds": true, "for_ms": 5, "why": "connected"},
                ],
            },
            "positions": {"lag_bytes": 2048, "retained_bytes": 1_048_576, "lag": {"secs": 1, "nanos": 500_000_000}},
            "reservoir": {"counts": {"ready": 3, "lent": 1, "dialing": 0}},
            "admission": {"total_connections": 5000, "max_connections": 10_000, "state": "healthy"},
            "quota": {"mode": "normal", "mode_since_ms": 10, "members": 2, "store": "redis", "why": null},
            "shapes": {"count": 1200, "bytes": 2048, "writes": true, "disk_full": false, "held": 3,
                "top": [{"table": "public.items", "where": "a > 1", "rows": 7, "bytes": 10, "streams": 3}]},
            "http": {"open_connections": 12, "requests": 3456},
        });
        let text = render(&status, Paint::PLAIN);
        let expected = "\
forebay serve at 127.0.0.1:3000, up for 1h 1m
state      not ready: the database isn't followed yet
phase      connection_setup, acquiring_lock for 1s
trouble    can't \\u{1b}[31mconnect (tried 3 times, next attempt in 30 s)
  no  pg_lock_acquired                   1m 1s  another has it
  yes replication_client_ready             5ms  connected
lag        1500 ms, 2.0 KiB not durable yet, 1.0 MiB of WAL retained for the slot
pools      metadata starting, snapshots ready
reservoir  3 ready, 1 lent, 0 dialing
admission  [###############...............] 5,000 of 10,000 streams, healthy
quota      normal for 10ms, 2 members, stored in redis
shapes     1,200, 2.0 KiB, this instance writes, 3 wait until Postgres has evaluated their clause
  public.items where a > 1: 7 rows, 10 B, 3 streams
http       12 connections open, 3,456 requests so far
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_adaptive_limit_is_shown_with_the_cause_of_its_last_decrease() {
        let decrease = json!({"cause": "latency", "from": 1_500, "to": 1_200, "seconds_ago": 61});
        let mut adaptive = json!({"limit": 1_230, "floor": 20, "open": 1_200, "last_decrease": decrease});
        let line = |adaptive: &serde_json::Value| {
            let status = json!({"command": "gate", "admission": {"adaptive": adaptive}});
            render(&status, Paint::PLAIN).lines().nth(1).map(str::to_owned)
        };
        let text = "adaptive   1,200 of at present 1,230 streams here, floor 20";
        let lowered = ", lowered from 1,500 to 1,200 1m 1s ago: latency";
        assert_eq!(line(&adaptive).unwrap(), format!("{text}{lowered}"));
        adaptive["last_decrease"] = json!(null);
        assert_eq!(line(&adaptive).unwrap(), text);
        assert_eq!(line(&json!(null)), None, "off");
    }

    #[test]
    fn an_unexpected_status_is_rendered_without_its_unknown_parts() {
        for status in
            [json!(null), json!([1]), json!({"command": 7, "database": [], "shapes": {"count": -1}})]
        {
            assert!(render(&status, Paint::PLAIN).starts_with("forebay "), "{status}");
        }
    }
}
