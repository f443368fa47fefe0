"use strict";
// Draws what the admin listener tells: once a second the metrics page, and the documents that the process has. What is drawn
// is text, never markup: names come from configurations and from strangers.

const PREFIX = "expressway_";
const PERIOD = 1000;
// Points of a line: two minutes.
const POINTS = 120;
// Rows of a table at most.
const ROWS = 50;

// What the process is, by a metric that only it has.
const KINDS = [
  ["fanout_datagrams_total", "fanout"], ["guard_packets_total", "guard"], ["balance_packets_total", "balance"],
  ["forward_packets_total", "forward"], ["relay_packets_total", "relay"], ["requests_total", "serve"],
];

// Tiles: lines are rates of counters ("rate"), or gauges. Those whose metrics the process lacks are not drawn.
const rate = (label, unit, ...names) => ({ label, unit, names, is_rate: true });
const gauge = (label, unit, ...names) => ({ label, unit, names, is_rate: false });
const TILES = [
  ["Received", [rate("by AF_XDP", "packets/s", "rx_xsk_packets_total"), rate("by the kernel", "packets/s", "rx_kernel_packets_total")]],
  ["Sent", [rate("by AF_XDP", "packets/s", "tx_xsk_packets_total"), rate("by the kernel", "packets/s", "tx_kernel_packets_total")]],
  ["Bytes over QUIC", [rate("sent", "bit/s", "bytes_sent_total"), rate("received", "bit/s", "bytes_received_total")]],
  ["Bytes over TCP", [rate("sent", "bit/s", "tcp_sent_bytes_total"), rate("received", "bit/s", "tcp_received_bytes_total")]],
  ["Connections", [gauge("QUIC", "", "connections"), gauge("in handshake", "", "handshaking")]],
  ["Requests", [rate("HTTP/3", "/s", "requests_total"), rate("over TCP", "/s", "tcp_requests_total")]],
  ["Cache", [rate("hits", "/s", "cache_hits_total"), rate("misses", "/s", "cache_misses_total")]],
  ["Upgrades", [gauge("generation", "", "generation"), gauge("older processes", "", "older_processes")]],
  ["Memory of clients", [gauge("held", "B", "memory_bytes"), gauge("may be held", "B", "memory_budget_bytes")]],
  ["Filter", [rate("judged", "packets/s", "guard_packets_total"), gauge("banned sources", "", "guard_bans")]],
  ["Balancer", [rate("packets", "packets/s", "balance_service_packets_total"), gauge("flows", "", "balance_service_flows_active")]],
  ["Router", [rate("packets", "packets/s", "forward_packets_total"), rate("bytes", "bit/s", "forward_bytes_total")]],
  ["Feed", [rate("datagrams", "/s", "fanout_datagrams_total"), rate("bytes", "bit/s", "fanout_datagram_bytes_total")]],
  ["Subscribers", [gauge("subscribed", "", "fanout_subscribers"), gauge("behind", "", "fanout_subscribers_behind")]],
  ["Rooms", [rate("received", "packets/s", "relay_packets_total"), rate("sent", "packets/s", "relay_receiver_packets_total")]],
  ["Drops", [rate("all reasons", "/s", "drops_total")]],
];

const at = (id) => document.getElementById(id);
const history = new Map();
let before = null;
let token = sessionStorage.getItem("token");

class Refused extends Error {}

async function ask(path) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (answer.status === 401) throw new Refused(await answer.text());
  return answer;
}

async function page(path) {
  const answer = await ask(path);
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${(await answer.text()).trim()}`);
  return answer.text();
}

// The text format of Prometheus: names, labels and values of samples.
function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found || !found[1].startsWith(PREFIX)) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    const name = found[1].slice(PREFIX.length);
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: Number(found[3]) });
  }
  return samples;
}

const all = (samples, name) => samples.get(name) || [];
const sum = (samples, name) => all(samples, name).reduce((total, one) => total + one.value, 0);

// What one of them grew by a second, since the page before.
function growth(now, key) {
  if (!before) return null;
  const seconds = (now.time - before.time) / 1000;
  const grown = key(now.samples) - key(before.samples);
  return seconds > 0 && grown >= 0 ? grown / seconds : null;
}

function short(value, unit) {
  if (value === null || Number.isNaN(value)) return "–";
  const scaled = unit === "bit/s" ? value * 8 : value;
  const steps = unit === "B" ? [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]] : [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
  const step = steps.find(([size]) => scaled >= size);
  const divided = step ? scaled / (step[1] === "k" ? 1e3 : step[0]) : scaled;
  const digits = step || divided % 1 ? (divided < 10 ? 2 : 1) : 0;
  return `${divided.toFixed(digits)} ${step ? step[1] : ""}${unit}`.trim();
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function remember(key, value) {
  const values = history.get(key) || [];
  values.push(value);
  history.set(key, values.slice(-POINTS));
}

function chart(keys) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const lines = keys.map((key) => history.get(key) || []);
  const top = Math.max(1, ...lines.flat().map((value) => value || 0));
  lines.forEach((values, index) => {
    const line = document.createElementNS(space, "polyline");
    const first = POINTS - values.length;
    line.setAttribute("points", values.map((value, point) => `${first + point},${98 - (96 * (value || 0)) / top}`).join(" "));
    line.setAttribute("class", index ? "second" : "first");
    svg.append(line);
  });
  return svg;
}

function tile(title, lines, now) {
  const here = lines.filter((line) => line.names.some((name) => now.samples.has(name)));
  if (!here.length) return null;
  const article = element("article");
  article.append(element("h2", title));
  const list = element("dl");
  const keys = here.map((line, index) => {
    const total = (samples) => line.names.reduce((value, name) => value + sum(samples, name), 0);
    const value = line.is_rate ? growth(now, total) : total(now.samples);
    const key = `${title} ${line.label}`;
    remember(key, value);
    list.append(element("dt", line.label, index ? "second" : "first"), element("dd", short(value, line.unit)));
    return key;
  });
  if (title === "Cache") {
    const hits = growth(now, (samples) => sum(samples, "cache_hits_total"));
    const misses = growth(now, (samples) => sum(samples, "cache_misses_total"));
    const asked = (hits || 0) + (misses || 0);
    list.append(element("dt", "hit ratio"), element("dd", asked ? `${((100 * hits) / asked).toFixed(1)} %` : "–"));
  }
  article.append(list, chart(keys));
  return article;
}

function table(title, heads, rows) {
  if (!rows.length) return null;
  const box = element("div");
  box.append(element("h2", title));
  const made = element("table");
  const head = element("tr");
  heads.forEach((name) => head.append(element("th", name)));
  made.append(head);
  for (const row of rows.slice(0, ROWS)) {
    const line = element("tr");
    row.forEach((cell) => {
      const is_number = typeof cell === "number" || (cell && cell.number);
      line.append(element("td", String(cell && cell.text !== undefined ? cell.text : cell), is_number ? "number" : cell && cell.bad ? "bad" : ""));
    });
    made.append(line);
  }
  box.append(made);
  if (rows.length > ROWS) box.append(element("p", `and ${rows.length - ROWS} more`));
  return box;
}

const number = (value, unit = "") => ({ text: short(value, unit), number: true });
const state = (good, yes, no) => (good ? yes : { text: no, bad: true });

function tables(now) {
  const { samples } = now;
  const same = (one, other) => Object.entries(one.labels).every(([name, value]) => other.labels[name] === value);
  const value = (name, one) => (all(samples, name).find((other) => same(one, other)) || { value: 0 }).value;
  const by = (name, one) => growth(now, (some) => (all(some, name).find((other) => same(one, other)) || { value: 0 }).value);
  const drops = all(samples, "drops_total").filter((one) => one.value > 0).sort((a, b) => b.value - a.value);
  return [
    table("Addresses", ["address", "mode"], all(samples, "listen").map(({ labels }) => [labels.address, labels.io])),
    table("Queues", ["interface", "queue", "program", "receive", "transmit"],
      all(samples, "io_mode_info").map(({ labels }) => [labels.interface, labels.queue, labels.attach, labels.receive, labels.transmit])),
    table("Modes that were given up", ["interface", "queue", "from", "to", "why"],
      all(samples, "io_step_down_info").map(({ labels }) => [labels.interface, labels.queue || "all", labels.from, labels.to, labels.reason])),
    table("Drops by reason", ["layer", "reason", "now", "in all"],
      drops.map((one) => [one.labels.layer, one.labels.reason, number(by("drops_total", one), "/s"), number(one.value)])),
    table("Origins", ["origin", "server", "state", "requests", "under way", "connections"],
      all(samples, "origin_up").map((one) => [one.labels.origin, one.labels.server, state(one.value, "in service", "out of service"),
        number(by("origin_requests_total", one), "/s"), number(value("origin_requests_active", one)), number(value("origin_connections_open", one))])),
    table("Nodes", ["service", "node", "state", "packets", "bytes", "flows"],
      all(samples, "balance_node_up").map((one) => [one.labels.service, one.labels.node, state(one.value, "up", "gets no new flows"),
        number(by("balance_node_packets_total", one), "/s"), number(by("balance_node_bytes_total", one), "bit/s"),
        number(value("balance_node_flows_active", one))])),
    table("Rules", ["rule", "packets", "dropped"],
      all(samples, "guard_rule_packets_total").map((one) => [one.labels.rule, number(by("guard_rule_packets_total", one), "/s"),
        number(by("guard_rule_dropped_packets_total", one), "/s")])),
    table("Rooms", ["room", "publisher", "packets", "bytes", "lost", "receivers"],
      all(samples, "relay_publishing").map((one) => [one.labels.room, one.value ? "publishing" : "none",
        number(by("relay_packets_total", one), "/s"), number(by("relay_bytes_total", one), "bit/s"), number(value("relay_lost", one)),
        all(samples, "relay_receiver_packets_total").filter((other) => other.labels.room === one.labels.room).length])),
  ];
}

function health(answer, text) {
  const pill = at("health");
  pill.textContent = answer.ok ? "serving" : text.trim();
  pill.className = answer.ok ? "pill good" : "pill bad";
}

async function draw() {
  const text = await page("metrics");
  if (text === null) throw new Error("no metrics page: not an expressway process");
  const now = { time: performance.now(), samples: parse(text) };
  const answer = await ask("healthz");
  health(answer, await answer.text());
  const kind = KINDS.find(([name]) => now.samples.has(name));
  at("title").textContent = kind ? `Expressway ${kind[1]}` : "Expressway";
  document.title = at("title").textContent;
  const info = all(now.samples, "info")[0];
  at("about").textContent = [location.host, info && `version ${info.labels.version}`].filter(Boolean).join(" · ");
  at("tiles").replaceChildren(...TILES.map(([title, lines]) => tile(title, lines, now)).filter(Boolean));
  at("tables").replaceChildren(...tables(now).filter(Boolean));
  before = now;
}

function say(problem) {
  at("problem").textContent = problem;
  at("problem").hidden = !problem;
}

async function turn() {
  let pause = PERIOD;
  try {
    if (!document.hidden) await draw();
    say("");
    at("ask").hidden = true;
  } catch (error) {
    at("health").textContent = "no answer";
    at("health").className = "pill bad";
    if (error instanceof Refused) {
      at("health").textContent = "locked";
      say(token ? error.message.trim() : "");
      at("ask").hidden = false;
      // Until one is entered: asking on would only be refused.
      return;
    }
    say(error.message);
    pause = 5 * PERIOD;
  }
  setTimeout(turn, pause);
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  sessionStorage.setItem("token", token);
  at("token").value = "";
  before = null;
  turn();
});

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const choose = () => {
  root.dataset.theme = sessionStorage.getItem("theme") || (dark.matches ? "dark" : "light");
};
dark.addEventListener("change", choose);
at("theme").addEventListener("click", () => {
  sessionStorage.setItem("theme", root.dataset.theme === "dark" ? "light" : "dark");
  choose();
});
choose();
turn();
