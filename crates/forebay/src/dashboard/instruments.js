"use strict";
// Values of the server are inserted as text, never as markup.

const $ = (id) => document.getElementById(id);
const WINDOW_MS = 600_000; // time range of the plots; the server keeps as much history
const SILENCE_MS = 4_000; // time without events after which the connection counts as lost; one is due each second

// ---- texts and units

const STEPS = [
  ["start_replication_client", "Start"],
  ["replication_client_connecting", "Connect"],
  ["acquiring_lock", "Lock"],
  ["configuring_connection", "Configure"],
  ["start_connection_pool", "Start pools"],
  ["connection_pool_connecting", "Fill pools"],
  ["start_shapes", "Load shapes"],
  ["start_streaming", "Request stream"],
  ["waiting_for_streaming_confirmation", "Confirm"],
  ["streaming", "Streaming"],
];
const CONDITIONS = {
  pg_lock_acquired: "Lock acquired",
  replication_client_ready: "Replication connection",
  admin_connection_pool_ready: "Pool for metadata",
  snapshot_connection_pool_ready: "Pool for snapshots",
  supervisor_processes_ready: "Shapes loaded",
  integrity_checks_passed: "Integrity checked",
  shape_log_collector_ready: "Shapes receive changes",
};
const PHASES = {
  connection_setup: "Connection setup", running: "Running", sleeping: "Asleep", halted: "Halted", stopped: "Stopping",
};
const TONES = {
  active: "ok", waiting: "sleep", starting: "warn", healthy: "ok", degraded: "warn", critical: "bad", exhausted: "bad",
};

const words = (name) => { const text = String(name).replaceAll("_", " "); return text[0].toUpperCase() + text.slice(1); };
const count = (n) => Number(n).toLocaleString("en-US");
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1).replace(/\.0$/, "")} ${units[at]}`;
}
// A no-break space keeps a number and its unit on one line.
function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const parts = s < 60 ? [s, "s"]
    : s < 3600 ? [Math.floor(s / 60), "min", s % 60, "s"]
    : s < 86400 ? [Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min"]
    : [Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h"];
  return parts.join("\u00a0");
}

// ---- page updates: only changed values are written, so that selection and focus are kept

function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
function set(element, name, value) { if (element.getAttribute(name) !== value) element.setAttribute(name, value); }
function pill(element, text, tone) { setText(element, text); set(element, "data-tone", tone ?? "quiet"); }
function note(element, text) { element.hidden = !text; setText(element, text ?? ""); }
function make(tag, name) { const element = document.createElement(tag); if (name) element.className = name; return element; }
function list(parent, items, begin, fill) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, at) => {
    const element = parent.children[at] ?? parent.appendChild(begin(item));
    fill(element, item, at);
  });
}
function pairs(parent, items) {
  list(parent, items.filter((item) => item[1] !== undefined && item[1] !== null && item[1] !== ""), () => {
    const div = make("div");
    div.append(make("dt"), make("dd"));
    return div;
  }, (div, [name, value, kind]) => {
    setText(div.firstChild, name);
    setText(div.lastChild, String(value));
    div.lastChild.className = kind ?? "";
  });
}

// ---- plots

const SVG = "http://www.w3.org/2000/svg";
let samples = []; // [local time, lag, retained, streams, requests per second], oldest first

class Plot {
  constructor(figure, title, unit, value) {
    Object.assign(this, { figure, title, unit, value, picked: null });
    const caption = make("figcaption");
    const name = make("b");
    name.textContent = title;
    this.now = make("span", "now");
    this.read = make("output", "read");
    const left = make("span");
    left.append(name);
    const right = make("span");
    right.append(this.read, " ", this.now);
    caption.append(left, right);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("aria-hidden", "true");
    figure.append(caption, this.svg);
    set(figure, "tabindex", "0");
    set(figure, "role", "group");
    figure.addEventListener("pointermove", (event) => this.pick(event));
    figure.addEventListener("pointerleave", () => { this.picked = null; this.draw(); });
    figure.addEventListener("blur", () => { this.picked = null; this.draw(); });
    figure.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  points() {
    return samples.map((sample) => [sample[0], this.value(sample)]).filter((point) => point[1] !== null);
  }
  pick(event) {
    const { x, w, end } = this.frame ?? {};
    if (!w) return;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    this.picked = end - WINDOW_MS * (1 - (at - x) / w);
    this.draw();
  }
  key(event) {
    const step = { ArrowLeft: -5_000, ArrowRight: 5_000, PageUp: -60_000, PageDown: 60_000 }[event.key];
    if (event.key === "Escape") this.picked = null;
    else if (step) { this.picked = Math.min((this.picked ?? performance.now()) + step, performance.now()); event.preventDefault(); }
    else return;
    this.draw();
  }
  draw() {
    const points = this.points();
    const last = samples.length && this.value(samples.at(-1)) !== null ? points.at(-1) : undefined;
    const most = points.reduce((most, point) => Math.max(most, point[1]), 0);
    setText(this.now, last ? this.unit.show(last[1]) : "–");
    const box = this.svg.getBoundingClientRect();
    if (box.width < 40) return;
    const top = this.unit.top(most);
    const x = 58, w = box.width - x - 6, y = 6, h = Math.max(40, box.height - 26), end = performance.now();
    this.frame = { x, w, end };
    const px = (time) => x + w * (1 - (end - time) / WINDOW_MS);
    const py = (value) => y + h * (1 - Math.min(1, value / top));
    const parts = [];
    const add = (tag, name, attributes, text) => {
      const element = document.createElementNS(SVG, tag);
      element.setAttribute("class", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (text !== undefined) element.textContent = text;
      parts.push(element);
    };
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(py(top * part)) + 0.5;
      add("line", part === 0 ? "base" : "grid", { x1: x, x2: x + w, y1: at, y2: at });
      add("text", "tick", { x: x - 8, y: at + 4, "text-anchor": "end" }, this.unit.tick(top * part));
    }
    for (const minutes of w < 380 ? [10, 5, 0] : [10, 8, 6, 4, 2, 0]) {
      const at = px(end - minutes * 60_000);
      const anchor = minutes === 0 ? "end" : minutes === 10 ? "start" : "middle";
      add("text", "tick", { x: at, y: y + h + 16, "text-anchor": anchor }, minutes === 0 ? "now" : `−${minutes} min`);
    }
    // Missing samples are a gap in the curve.
    const runs = [];
    for (const point of points) {
      const run = runs.at(-1);
      if (run && point[0] - run.at(-1)[0] < 3_500) run.push(point);
      else runs.push([point]);
    }
    for (const run of runs) {
      const path = run.map(([time, value]) => `${Math.max(x, px(time)).toFixed(1)} ${py(value).toFixed(1)}`).join("L");
      const from = Math.max(x, px(run[0][0])).toFixed(1), to = px(run.at(-1)[0]).toFixed(1);
      add("path", "area", { d: `M${from} ${py(0)}L${path}L${to} ${py(0)}Z` });
      add("path", "curve", { d: `M${path}` });
    }
    let read = points.length ? `max ${this.unit.show(most)} ·` : "";
    if (this.picked !== null && points.length) {
      const near = points.reduce((a, b) => (Math.abs(b[0] - this.picked) < Math.abs(a[0] - this.picked) ? b : a));
      add("line", "cross", { x1: px(near[0]), x2: px(near[0]), y1: y, y2: y + h });
      add("circle", "dot", { cx: px(near[0]), cy: py(near[1]), r: 4.5 });
      read = `${this.unit.show(near[1])}, ${duration(end - near[0])} ago · now`;
    }
    setText(this.read, read);
    set(this.figure, "aria-label", `${this.title}, last 10 minutes: ${last ? this.unit.show(last[1]) : "no data yet"}, maximum ${this.unit.show(most)}. Arrow keys read values.`);
    this.svg.replaceChildren(...parts);
  }
}
const BYTES = {
  show: bytes, tick: (n) => (n === 0 ? "0" : bytes(n)),
  top: (most) => { let top = 1024; while (top < most) top *= 2; return top; },
};
const nice = (most, least) => { let top = least; for (let at = 0; top < most; at += 1) top *= at % 3 === 1 ? 2.5 : 2; return top; };
const COUNT = { show: (n) => count(Math.round(n)), tick: (n) => count(n), top: (most) => nice(most, 4) };
const RATE = { show: (n) => `${n.toFixed(n < 10 ? 1 : 0)} / s`, tick: (n) => count(n), top: (most) => nice(most, 4) };
const PLOTS = {
  lag: ["Replication lag", BYTES, (sample) => sample[1]],
  retained: ["WAL retained", BYTES, (sample) => sample[2]],
  streams: ["Open streams here", COUNT, (sample) => sample[3]],
  requests: ["Requests", RATE, (sample) => sample[4]],
};
const plots = [...document.querySelectorAll("[data-plot]")].map((figure) => new Plot(figure, ...PLOTS[figure.dataset.plot]));

let requests = null; // time and number of the last request count
function sampled([age, lag, retained, streams, total], now) {
  const time = now - age;
  const rate = requests && time > requests[0] && total >= requests[1] ? ((total - requests[1]) * 1000) / (time - requests[0]) : null;
  requests = [time, total];
  return [time, lag, retained, streams, rate];
}
function remember(sample) {
  const before = samples.at(-1);
  if (before && sample[0] - before[0] < 400) return; // a new page gets the latest sample twice
  samples.push(sample);
  while (samples.length && samples[0][0] < sample[0] - WINDOW_MS) samples.shift();
}
