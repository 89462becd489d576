"use strict";
// A client without a library: it requests the table, then waits for changes in a loop.
const $ = (id) => document.getElementById(id);
const SHOWN = 200;
const table = new URLSearchParams(location.search).get("table") || "orders";
const rows = new Map();
$("table").value = table;

async function follow() {
  let offset = "-1", handle = "", live = "";
  for (;;) {
    const url = `/v1/shape?table=${encodeURIComponent(table)}&offset=${offset}${handle}${live}`;
    const response = await fetch(url, { cache: "no-store" });
    if (response.status === 409) { // the shape was removed: start over with a new one
      rows.clear();
      [offset, handle, live] = ["-1", "", ""];
      continue;
    }
    if (!response.ok) throw new Error((await response.json()).message ?? `the server responded with ${response.status}`);
    const header = (name) => response.headers.get(`electric-${name}`);
    const changed = new Set();
    for (const { key, value, headers } of await response.json()) {
      if (!key) continue;
      if (headers.operation === "delete") rows.delete(key);
      else {
        const row = { ...rows.get(key), ...value };
        rows.delete(key); // the most recent change is last
        rows.set(key, row);
        if (live) changed.add(key);
      }
    }
    offset = header("offset");
    handle = `&handle=${header("handle")}`;
    if (header("up-to-date") !== null) {
      live = `&live=true&cursor=${header("cursor") ?? ""}`;
      show(changed);
    }
    $("request").textContent = `GET ${url}`;
  }
}

function show(changed) {
  const newest = [...rows].reverse().slice(0, SHOWN);
  const names = newest.length ? Object.keys(newest[0][1]) : [];
  const head = document.createElement("tr");
  head.append(...names.map((name) => Object.assign(document.createElement("th"), { textContent: name, scope: "col" })));
  document.querySelector("thead").replaceChildren(head);
  $("rows").replaceChildren(...newest.map(([key, row]) => {
    const tr = document.createElement("tr");
    tr.dataset.key = key;
    if (changed.has(key)) tr.className = "changed";
    tr.append(...names.map((name) => Object.assign(document.createElement("td"), { textContent: row[name] ?? "" })));
    return tr;
  }));
  $("state").textContent = `${rows.size.toLocaleString("en-US")} ${rows.size === 1 ? "row" : "rows"}, live; what changed last is on top.`;
}

async function always() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      $("state").textContent = `Not live: ${error.message}. Trying again…`;
      rows.clear();
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}
always();
