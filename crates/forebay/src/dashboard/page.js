
// ---- both commands

function common(status) {
  const admission = status.admission, statistics = admission.statistics, quota = status.quota ?? admission.quota;
  const [used, most] = [statistics.total_connections, statistics.max_connections];
  const { degraded_threshold: degraded, critical_threshold: critical } = statistics;
  pill($("admission-state"), admission.draining ? "Draining" : words(statistics.state), admission.draining ? "warn" : TONES[statistics.state]);
  const gauge = $("admission-gauge");
  gauge.firstElementChild.style.width = `${Math.min(100, most ? (used / most) * 100 : 100)}%`;
  set(gauge, "data-tone", TONES[statistics.state] ?? "quiet");
  set(gauge, "aria-label", `${count(used)} of ${count(most)} streams open, ${statistics.state}`);
  list($("admission-scale"), [
    [0, `${plural(used, "stream", "streams")} open`, "", "start"], [degraded / most, "degraded", ` ${count(degraded)}`, ""],
    [critical / most, "critical", ` ${count(critical)}`, critical / most > 0.85 ? "end" : ""],
  ], () => {
    const span = make("span");
    span.append(make("i"), make("b"));
    return span;
  }, (span, [part, name, number, kind]) => {
    setText(span.firstChild, name);
    setText(span.lastChild, number);
    span.className = kind;
    span.style.left = `${Math.min(1, part) * 100}%`;
  });
  const limit = admission.limits.per_user, adaptive = admission.adaptive, lowered = adaptive?.last_decrease;
  const bits = [
    `${statistics.utilization_percent} % of ${count(most)} in total`,
    adaptive ? `${count(adaptive.open)} of at present ${count(adaptive.limit)} here` : null,
    lowered ? `lowered ${duration(lowered.seconds_ago * 1000)} ago: ${lowered.cause}` : null,
    limit < most ? `${count(limit)} per user` : "no limit per user",
    admission.waiting ? `${count(admission.waiting)} waiting` : null,
    admission.shedding ? `refuses new streams: too much ${admission.shedding}` : null,
    `${statistics.state} for ${duration(admission.health.since_seconds * 1000)}`,
    statistics.state === "healthy" ? null : admission.health.why,
  ];
  setText($("admission-why"), bits.filter(Boolean).join(" · "));
  const users = admission.users ?? [];
  $("users-none").hidden = users.length > 0;
  list($("users"), users, () => {
    const li = make("li"), bar = make("span", "bar");
    bar.append(make("i"));
    li.append(make("span", "mono"), bar, make("span", "num"));
    return li;
  }, (li, user) => {
    setText(li.children[0], user.user);
    li.children[1].firstChild.style.width = `${(user.streams / users[0].streams) * 100}%`;
    setText(li.children[2], count(user.streams));
  });
  return { quota, process: admission.process };
}

function facts(status, quota, process) {
  const alone = quota.store === "memory";
  pairs($("facts"), [
    ["Version", status.version], ["Uptime", duration(status.uptime_ms)],
    ["Instance", alone ? "local quota" : quota.member.replace(/:[0-9a-f]{16}$/, ""), alone ? "" : "mono"],
    ["Quota", alone ? null : `${words(quota.mode)}, ${plural(quota.members, "member", "members")}`],
    ["Connections", count(status.http.open_connections)],
    ["Memory", process.resident_bytes === null ? null : bytes(process.resident_bytes)],
    ["CPU", process.cpu_ratio === null ? null : `${(process.cpu_ratio * 100).toFixed(1)} % of ${+process.cpus.toFixed(1)}`],
  ]);
}

// ---- forebay serve

const TICK = "M3 8.5l3.2 3.2L13 4.5", CROSS = "M4 4l8 8M12 4l-8 8";
function database({ database }) {
  const { step, phase, retries } = database;
  const way = $("way");
  const here = STEPS.findIndex(([name]) => name === step);
  setText($("step"), here < 0 || PHASES[phase] === words(step) ? words(step) : `${PHASES[phase]}: ${words(step).toLowerCase()}`);
  const tries = retries ? ` · ${plural(retries, "failure", "failures")} in ${duration(database.retrying_for_ms ?? 0)}` : "";
  const next = database.retry_in_ms === null ? "" : ` · next attempt in ${duration(database.retry_in_ms)}`;
  setText($("step-for"), `for ${duration(database.step_for_ms)}${tries}${next}`);
  set(way, "data-arrived", String(step === "streaming"));
  list(way, STEPS, () => make("li"), (li, [name, text], at) => {
    setText(li, text);
    set(li, "data-at", at < here ? "done" : at === here ? "here" : "ahead");
    set(li, "title", words(name));
    if (at === here) set(li, "aria-current", "step"); else li.removeAttribute("aria-current");
  });
  note($("trouble"), database.trouble);
  const held = database.conditions.filter((condition) => condition.holds).length;
  setText($("conditions-sum"), `${held} of ${database.conditions.length} hold`);
  list($("conditions"), database.conditions, () => {
    const li = make("li"), svg = document.createElementNS(SVG, "svg");
    svg.append(document.createElementNS(SVG, "path"));
    set(svg, "viewBox", "0 0 16 16");
    set(svg, "role", "img");
    li.append(svg, make("span", "name"), make("span", "since"), make("span", "why"));
    return li;
  }, (li, { condition, holds, for_ms, why }) => {
    set(li, "data-condition", condition);
    set(li, "data-holds", String(holds));
    set(li.children[0], "aria-label", holds ? "holds" : "doesn't hold");
    set(li.children[0].firstChild, "d", holds ? TICK : CROSS);
    setText(li.children[1], CONDITIONS[condition] ?? words(condition));
    setText(li.children[2], `for ${duration(for_ms)}`);
    setText(li.children[3], why);
  });
}

const CELLS = 48; // larger pools are drawn as one bar
function reservoir({ reservoir: pool }) {
  const states = ["lent", "ready", "resetting", "dialing", "retiring"];
  const counts = pool?.counts ?? {}, most = pool?.max ?? 0;
  const total = states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  setText($("reservoir-sum"), pool ? `${total} of ${most} connections${pool.waiting ? ` · ${plural(pool.waiting, "caller waits", "callers wait")}` : ""}` : "closed");
  const cells = states.flatMap((state) => Array(counts[state] ?? 0).fill(state));
  const many = most > CELLS;
  const drawn = many ? states.map((state) => [state, counts[state] ?? 0]).filter(([, n]) => n > 0) : cells.map((state) => [state, 1]);
  if (many) drawn.push(["free", Math.max(0, most - total)]);
  else while (drawn.length < most) drawn.push(["free", 1]);
  const tank = $("tank");
  tank.classList.toggle("many", many);
  set(tank, "aria-label", states.map((state) => `${counts[state] ?? 0} ${state}`).join(", ") + ` of ${most}`);
  list(tank, drawn, () => make("span"), (span, [state, parts]) => { set(span, "data-is", state); span.style.flexGrow = parts; });
  list($("tank-marks"), pool ? [[pool.low_watermark, `low watermark ${pool.low_watermark}`], [pool.target, `target ${pool.target}`]] : [],
    () => make("span"), (span, [at, text]) => { setText(span, text); span.style.left = `${most ? (at / most) * 100 : 0}%`; });
  list($("tank-legend"), states, () => { const li = make("li"); li.append(make("i"), make("b"), make("span")); return li; },
    (li, state) => { set(li, "data-is", state); setText(li.children[1], count(counts[state] ?? 0)); setText(li.children[2], state); });
  const lives = pool?.lives ?? [];
  list($("ages"), lives, () => make("i"), (dot, life) => {
    dot.className = life.lent ? "lent" : "";
    dot.style.left = `${(life.age_ms / Math.max(1, life.age_ms + life.ends_in_ms)) * 100}%`;
  });
  const next = lives.reduce((least, life) => Math.min(least, life.ends_in_ms), Infinity);
  const text = lives.length
    ? `New on the left, replaced on the right. Oldest ${duration(lives[0].age_ms)}, youngest ${duration(lives.at(-1).age_ms)}; the next expires in ${duration(next)}.`
    : "No open connections.";
  setText($("ages-sum"), text);
  set($("ages"), "aria-label", text);
  note($("reservoir-trouble"), pool?.trouble);
}

// Clause without unneeded quotes and without brackets around the whole.
const clause = (text) => text.replaceAll(/"([a-z_][a-z0-9_]*)"/g, "$1").replace(/^\((.*)\)$/s, (all, inside) => (balanced(inside) ? inside : all));
function balanced(text) {
  let depth = 0;
  for (const char of text) {
    depth += char === "(" ? 1 : char === ")" ? -1 : 0;
    if (depth < 0) return false;
  }
  return depth === 0;
}

let order = { by: "streams", up: false }, latest = null;
function shapes({ shapes: all, listen }) {
  const top = [...all.top];
  const key = (shape) => (order.by === "table" ? shape.table : shape[order.by] ?? -1);
  top.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (order.up ? 1 : -1) || b.bytes - a.bytes);
  const more = all.count > top.length ? `; showing the ${top.length} with the most streams, then the largest` : "";
  setText($("shapes-sum"), `${plural(all.count, "shape", "shapes")} · ${bytes(all.bytes)} · ${plural(all.streams, "stream", "streams")}${all.held ? ` · ${count(all.held)} waiting for Postgres to evaluate a clause` : ""}${all.writes ? "" : " · read-only, another instance writes"}${more}`);
  $("shapes-none").hidden = all.count > 0;
  $("shapes").hidden = all.count === 0;
  setText($("first-shape"), `curl 'http://${listen}/v1/shape?table=…&offset=-1'`);
  list($("shapes").tBodies[0], top, () => {
    const tr = make("tr");
    for (const [label, kind] of [["Table", ""], ["Where", "clause"], ["Rows", "num"], ["Size", "num"], ["Streams", "num"], ["Last offset", "mono"], ["Handle", "mono"]]) {
      const td = make("td", kind);
      td.dataset.label = label;
      tr.append(td);
    }
    return tr;
  }, (tr, shape) => {
    const columns = shape.columns ? ` (${shape.columns.join(", ")})` : "";
    const texts = [shape.table.replace(/^public\./, "") + columns, shape.where ? clause(shape.where) : "all rows", shape.rows === null ? "–" : count(shape.rows),
      bytes(shape.bytes), count(shape.streams), shape.last_offset, shape.handle];
    texts.forEach((text, at) => setText(tr.children[at], text));
    tr.children[1].classList.toggle("quiet", !shape.where);
  });
}
for (const button of document.querySelectorAll("[data-sort]")) {
  button.addEventListener("click", () => {
    const by = button.dataset.sort;
    order = { by, up: order.by === by ? !order.up : by === "table" };
    for (const th of document.querySelectorAll("#shapes th")) th.removeAttribute("aria-sort");
    button.parentElement.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    if (latest) shapes(latest);
  });
}

const ms = ({ secs, nanos }) => secs * 1000 + nanos / 1e6;
function positions({ positions: { transactions, last_commit_age: age, lag, backend_pid }, database }) {
  if (database.phase !== "running" || backend_pid === null) return "no replication connection";
  const behind = ms(lag);
  return [
    age === null ? "no commit on this connection yet" : `${plural(transactions, "commit", "commits")}, the last ${duration(ms(age))} ago`,
    behind === 0 ? null : `${behind < 10 ? behind.toFixed(1) : Math.round(behind)}\u00a0ms behind`,
    `backend\u00a0${backend_pid}`,
  ].filter(Boolean).join(" · ");
}

function serve(status) {
  const { quota, process } = common(status);
  facts(status, quota, process);
  const bad = status.shapes.disk_full ? "Disk full" : status.database.halted ? "Database unfit" : null;
  pill($("health"), bad ?? words(status.health), bad ? "bad" : TONES[status.health]);
  set($("health"), "title", status.why_not_ready ?? "ready");
  setText($("positions"), positions(status));
  database(status);
  reservoir(status);
  shapes(status);
  return status.listen;
}

// ---- forebay gate

function gate(status) {
  const { quota, process } = common(status);
  const { gate } = status, pool = gate.upstream_connections;
  facts(status, quota, process);
  pill($("health"), gate.draining ? "Draining" : status.ready ? "Ready" : "Not ready", gate.draining || !status.ready ? "warn" : "ok");
  set($("health"), "title", status.why_not_ready ?? "ready");
  pill($("upstream-state"), gate.upstream_failing ? "Failing" : "OK", gate.upstream_failing ? "bad" : "ok");
  setText($("upstream-url"), gate.upstream);
  pairs($("upstream-facts"), [
    ["Open", count(pool.open)], ["Idle", count(pool.idle)], ["Dialled", count(pool.dials)], ["Reused", count(pool.reuses)],
    ["Retried", count(pool.retries)], ["Plain requests", count(gate.plain_requests)],
    ["Identity", gate.identity.join(", ") || "none"],
  ]);
  const routes = gate.every_request_takes_a_permit ? ["every request takes a permit"] : gate.stream_routes;
  list($("routes"), routes, () => make("li"), (li, route) => setText(li, route));
  pill($("quota-state"), words(quota.mode), quota.mode === "normal" ? "ok" : "warn");
  pairs($("quota-facts"), [
    ["Store", quota.store], ["Members", count(quota.members)], ["In mode for", duration(quota.mode_since_ms)], ["Member", quota.member, "mono"],
  ]);
  note($("quota-why"), quota.why);
  setText($("traffic"), `${count(status.http.request)} requests, ${count(status.http.accepted)} connections so far`);
  return gate.listen;
}

// ---- open streams of all instances, requested only while their section is open

const STREAMS_SHOWN = 100, STREAMS_MS = 5_000;
function streams(all) {
  const more = all.cut_off ? `; showing the oldest ${count(all.streams.length)}` : "";
  setText($("streams-sum"), `${plural(all.open, "stream", "streams")} at ${plural(all.instances.length, "instance", "instances")}${more}`);
  const silent = all.silent.length ? `No answer from ${plural(all.silent.length, "instance", "instances")}: ${all.silent.join(", ")}. ` : "";
  note($("streams-why"), silent + (all.why ? `${all.why}.` : "") || null);
  $("streams-table").hidden = all.streams.length === 0;
  list($("streams-table").tBodies[0], all.streams, () => {
    const tr = make("tr");
    for (const [label, kind] of [["Open for", ""], ["User", "mono"], ["Instance", "mono"], ["Route", ""], ["Thread id", "mono"]]) {
      const td = make("td", kind);
      td.dataset.label = label;
      tr.append(td);
    }
    return tr;
  }, (tr, stream) => {
    set(tr.children[0], "title", stream.since);
    [duration(stream.since_seconds * 1000), stream.user ?? "–", stream.instance, stream.route ?? "–", stream.thread_id]
      .forEach((text, at) => setText(tr.children[at], text));
  });
}
let asking = false;
async function askStreams() {
  if (asking || !$("streams").open || document.hidden) return;
  asking = true;
  try {
    const url = new URL(`v1/streams${location.search}`, location.href);
    url.searchParams.set("limit", STREAMS_SHOWN);
    [url.username, url.password] = ["", ""]; // fetch() accepts no URL with credentials
    const response = await fetch(url);
    if (!response.ok) throw new Error(`status ${response.status}`);
    streams(await response.json());
  } catch (error) {
    note($("streams-why"), `The list can't be updated: ${error.message}.`);
  } finally {
    asking = false;
  }
}
$("streams").addEventListener("toggle", askStreams);
setInterval(askStreams, STREAMS_MS);

// ---- event stream

let lastEvent = 0, lostSince = null, source = null;
function show({ sample, status }) {
  latest = status;
  remember(sampled(sample, performance.now()));
  const command = status.command;
  for (const section of document.querySelectorAll("[data-for]")) section.hidden = section.dataset.for !== command;
  setText($("command"), command);
  const listen = command === "gate" ? gate(status) : serve(status);
  setText($("where"), `Clients connect at ${listen}`);
  setText($("updated"), `Updated ${new Date().toLocaleTimeString()}`);
  document.title = `${$("health").textContent} · ${listen} · Forebay`;
  plots.forEach((plot) => plot.draw());
}
function link(state, text) { set($("link"), "data-link", state); setText($("link-text"), text); }
function live() {
  lastEvent = performance.now();
  lostSince = null;
  link("live", "Live");
  note($("lost"), null);
  set($("main"), "data-stale", "false");
}
function lost() {
  if (lostSince === null) lostSince = Date.now();
  link("lost", "No connection");
  const old = latest ? "The data below is outdated. " : "";
  note($("lost"), `No connection to this server since ${new Date(lostSince).toLocaleTimeString()}. ${old}Reconnecting…`);
  set($("main"), "data-stale", "true");
  pill($("health"), "Unknown", "quiet");
  document.title = `No connection · Forebay`;
}
function listen() {
  // The page's own parameters are passed on: a proxy may authenticate by them.
  source = new EventSource(`v1/events${location.search}`);
  source.addEventListener("history", (event) => {
    const now = performance.now(), history = JSON.parse(event.data);
    requests = null;
    const received = history.map((sample) => sampled(sample, now));
    const from = received.length ? received[0][0] : now;
    samples = samples.filter((sample) => sample[0] < from && sample[0] > now - WINDOW_MS).concat(received);
  });
  source.addEventListener("message", (event) => { live(); show(JSON.parse(event.data)); });
  source.addEventListener("error", lost);
}
setInterval(() => {
  if (lastEvent && performance.now() - lastEvent > SILENCE_MS) lost();
  // After some responses, such as a 503, the browser stops reconnecting. Then the page reconnects.
  if (source.readyState === EventSource.CLOSED) { source.close(); listen(); }
}, 2_000);
listen();
