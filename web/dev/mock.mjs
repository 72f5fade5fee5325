// An API with invented runs, for work on the dashboard without a ledger. Serves the built files too.
//   node dev/mock.mjs [--port 8642] [--runs 3] [--viewer] [--login] [--base /sub/]
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const option = (name, fallback) => {
  const at = process.argv.indexOf(`--${name}`);
  if (at < 0) return fallback;
  const value = process.argv[at + 1];
  return value === undefined || value.startsWith("--") ? true : value;
};
const PORT = Number(option("port", 8642));
const RUNS = Number(option("runs", 3));
const BASE = option("base", "/");
const STATIC = fileURLToPath(new URL("../../src/shoal/control/static", import.meta.url));
const START = Date.now();
let loggedIn = !option("login", false);
let ledgerOk = true;

const iso = (ms) => new Date(ms).toISOString();
const noise = (seed) => {
  const x = Math.sin(seed * 127.1) * 43758.5453;
  return x - Math.floor(x);
};
const STATES = ["ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled"];
const SCRAPERS = ["books", "news_de", "permits_us", "grants", "listings", "subtitles", "prices", "archives"];
const HOSTS = ["books.example.com", "www.example.org", "api.example.net", "cdn.example.com", "news.example.de"];
const CAUSES = ["host limit", "retry time", "egress", "workers", "ordered group"];
const paused = new Set();
const POOL = { pool: "datacenter", kind: "proxies", exits: 40, good: 33, banned: 4, resting: 2, trial: 1, members: 9, first_back: 30, budgets: [], text: "datacenter: 33 of 40 proxies good" };

function counts(total, share, n) {
  const done = Math.floor(total * share * 0.96);
  const dead = Math.floor(total * share * 0.011);
  const skipped = Math.floor(total * share * 0.029);
  const rest = total - done - dead - skipped;
  const leased = Math.min(64, rest);
  const delayed = Math.min(Math.floor(rest * 0.02), rest - leased);
  const waiting = Math.floor((rest - leased - delayed) * 0.7);
  const ready = rest - leased - delayed - waiting;
  return {
    total, ended: done + dead + skipped, remaining: rest,
    ready, waiting, delayed, leased, done, dead, skipped, cancelled: 0,
    records: Math.floor(done * (1.4 + n * 0.1)), duplicates: Math.floor(done * 0.07),
    new_records: done, changed_records: Math.floor(done * 0.1), unchanged_records: Math.floor(done * 0.3), dropped_records: 3,
  };
}

function runId(n) {
  return `${SCRAPERS[n % SCRAPERS.length]}-2026111${6 - (n % 6)}-${(0x7f3a21 + n * 7919).toString(16)}`;
}

function run(n) {
  const totals = [120_000, 5_012_480, 840, 64_210];
  const total = totals[n % 4];
  const base = [0.402, 0.71, 1, 0.12][n % 4];
  const state = paused.has(n) ? "paused" : base === 1 ? "finished" : n === 5 ? "cancelled" : n === 3 ? "paused" : "active";
  const share = base === 1 ? 1 : Math.min(0.999, base + ((Date.now() - START) / 1000) * 0.00005);
  const c = counts(total, share, n);
  const active = state === "active";
  return {
    run_id: runId(n), scraper: SCRAPERS[n % SCRAPERS.length], state, sealed: n % 2 === 0,
    created_at: iso(START - 3.6e6 * (3 + n)), finished_at: state === "finished" ? iso(START - 1.1e6) : null,
    ...c,
    done_share: c.done / total, ended_share: c.ended / total,
    rate_per_minute: active ? Math.round((n === 1 ? 8120 : 312) * (0.95 + 0.1 * noise(Date.now() / 3000))) : null, ok: 0.973 - n * 0.004,
    eta_seconds: active && n !== 1 ? [13_200, 16_200] : null, total_grows: n === 1, growing: n === 1,
    waiting_for: active ? "host limit 61%" : "", waiting_because: active ? `Limited by ${HOSTS[n % 5]}: 2 starts per second; 14 of 40 workers are idle.` : "",
    egress: n === 0 ? [POOL] : [],
    alerts: n === 0 ? [{ kind: "errors", episode: "1", text: "6.1% of the attempts of the last 10 minutes failed." }] : [],
    sinks: n === 0 ? [{ sink: "warehouse", kind: "postgres", place: "postgres://db/warehouse", state: "delivering", delivered: 61_220, behind: 240, behind_is_at_least: false, lag_seconds: 1.4, dead_letters: 0, delivered_at: iso(Date.now() - 900), failing_since: null, error: null }] : [],
  };
}

const runs = () => Array.from({ length: RUNS }, (_, n) => run(n));
function find(id) {
  if (id === "latest") return RUNS ? run(0) : null;
  const n = Array.from({ length: RUNS }, (_, k) => runId(k)).indexOf(id);
  return n < 0 ? null : run(n);
}

const US = "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY".split(" ");

function partitionsOf(r) {
  return US.slice(0, 24).map((partition, k) => ({
    stage: k % 3 === 0 ? "list" : "detail", partition, ...counts(Math.floor(r.total / 24), Math.min(1, r.ended_share * (0.5 + noise(k))), 1),
    eta_seconds: [600 + 300 * k, 1200 + 400 * k],
  }));
}

function detail(r) {
  return {
    ...r, command: `shoal status ${r.run_id}`,
    stages: ["list", "detail"], stage_counts: { list: counts(Math.floor(r.total * 0.1), Math.min(1, r.ended_share * 1.6), 0), detail: counts(Math.floor(r.total * 0.9), r.ended_share * 0.9, 0) }, max_attempts: 5, max_rescues: 3, code_version: "b1946ac9", settings: { concurrency: 8, robots: true },
    events: events().slice(0, 8),
    why: [
      { code: "host_limit", text: `Items wait for ${HOSTS[0]}: its lane admits 2 starts per second.`, since: iso(Date.now() - 4.1e6), until: null, items: 41_220, pool: null },
      { code: "retry", text: "Items wait for their retry time.", since: null, until: iso(Date.now() + 45_000), items: r.delayed, pool: null },
    ],
    workers: { live: 7, draining: 1, lost: 1, running: 56 },
    worker_progress: Array.from({ length: 9 }, (_, k) => ({ worker: `node-${1 + (k % 3)}-40${k}-9f2c11a${k}`, state: k === 7 ? "draining" : k === 8 ? "dead" : "live", leased: k === 8 ? 4 : 8, done: 5300 - 211 * k, dead: k * 3, skipped: 4 })),
    versions: { "0.3.0": 9 }, code_versions: { b1946ac9: 8, "55af0c12": 1 },
  };
}

function history(minutes) {
  const step = minutes <= 60 ? 60 : minutes <= 1440 ? 600 : 3600;
  const n = Math.floor((minutes * 60) / step);
  const end = Math.floor(Date.now() / 1000 / step) * step * 1000;
  const points = Array.from({ length: n }, (_, k) => {
    const at = end - (n - 1 - k) * step * 1000;
    const wave = 1 + 0.25 * Math.sin(k / 7) + 0.15 * noise(k);
    const dip = k > n * 0.55 && k < n * 0.65 ? 0.35 : 1;
    const done = Math.floor(310 * wave * dip * (step / 60));
    return {
      at: iso(at), ready: 2000, waiting: Math.floor(60_000 - k * 300), delayed: 700, leased: 64, done: 20_000 + k * 310, dead: 400 + k * 3, skipped: 900, cancelled: 0,
      ended: { done, dead: Math.floor(done * 0.012), skipped: Math.floor(done * 0.03), retried: Math.floor(done * 0.06 / dip), throttled: Math.floor(done * 0.02 / dip) },
      records: Math.floor(done * 1.4),
      wait: { count: done, p50: 4.2 / dip, p95: 22 / dip, p99: 61 / dip },
      work: { count: done, p50: 0.34 * wave, p95: 1.3 * wave, p99: 3.9 * wave * (dip < 1 ? 2 : 1) },
      waiting_for: { "host limit": Math.floor(41_000 * wave), "retry time": Math.floor(900 / dip), egress: dip < 1 ? 16_000 : 2000 + 90 * k, workers: Math.floor(4000 * noise(k + 9)) },
    };
  });
  const at = (share) => iso(end - (1 - share) * minutes * 60_000);
  return {
    step_seconds: step, points,
    marks: [
      { at: at(0.54), actor: "ops@127.0.0.1", action: "lane.set", text: "books.example.com: 2/s, was 4/s" },
      { at: at(0.66), actor: "ops@127.0.0.1", action: "pool.scale", text: "workers 24 to 40" },
    ],
  };
}

const HOSTILE = `<img src=x onerror="document.title='pwned'"><script>alert(1)</script>`;

function item(r, id) {
  const state = STATES[[4, 4, 1, 0, 4, 5, 2, 3, 4, 6][id % 10]];
  const url = id % 17 === 5 ? `javascript:alert(${id})` : `https://${HOSTS[id % 5]}/catalogue/page-${id}.html?sort=price&ref=${(id * 7919).toString(36)}`;
  const dead = state === "dead";
  return {
    run_id: r.run_id, item_id: id, stage: id % 4 ? "detail" : "list", partition: US[id % 50], key: `page-${id}`, url,
    payload: { page: id, state: US[id % 50], note: id % 13 === 5 ? HOSTILE : "spring" }, request: null, depth: 2, lane: HOSTS[id % 5], priority: 0, max_attempts: 5,
    state, since: iso(Date.now() - 1000 * (id % 4000) - 3000), due_at: state === "delayed" ? iso(Date.now() + 42_000) : null,
    worker: state === "leased" ? "node-1/worker-3" : null, tries: dead ? 5 : id % 3, rescues: 0, epoch: 2,
    outcome: dead ? "http_error" : state === "done" ? "ok" : null,
    error: dead ? (id % 13 === 5 ? HOSTILE : `HTTP 503 from ${HOSTS[id % 5]} after 5 tries`) : null, parent: id > 3 ? Math.floor(id / 3) : null,
    waiting_text: state === "waiting" ? `waits for ${HOSTS[id % 5]}: 2 starts per second, 41,220 items are ahead` : state === "delayed" ? "retries in 42 s after HTTP 429" : "",
  };
}

function itemDetail(r, id) {
  const it = item(r, id);
  const begin = Date.now() - 500_000;
  const attempts = Array.from({ length: Math.max(1, it.tries) }, (_, k) => {
    const from = begin + k * k * 19_000;
    const seconds = 0.6 + noise(id + k) * (k === 1 ? 30 : 4);
    const last = k === Math.max(1, it.tries) - 1;
    return {
      epoch: k + 1, worker: `node-${1 + (k % 3)}/worker-${k}`, claimed_at: iso(from), ended_at: iso(from + seconds * 1000), seconds,
      outcome: last ? (it.outcome ?? "throttled") : k % 2 ? "throttled" : "timeout", error: last && !it.error ? null : (it.error ?? "timed out after 30 s"),
      egress: `datacenter 198.51.100.${20 + k}:3128`, detail: { status: k % 2 ? 429 : 503, bytes: 8211 },
    };
  });
  return {
    ...it, attempts,
    why: ["done", "dead", "skipped", "cancelled"].includes(it.state) ? [] : [
      { code: "lane", text: `It waits for the lane ${it.lane}: 2 starts per second, 41,220 items are ahead of it.`, since: it.since, until: iso(Date.now() + 9e6), items: 41_220, pool: null },
    ],
    results: it.state === "done" ? [{ item_id: id, n: 0, stage: it.stage, key: it.key, url: it.url, record: { title: id % 13 === 1 ? HOSTILE : "A Light in the Attic", price: 51.77, in_stock: true, tags: ["poetry", "childrens"] }, record_key: "page", change: "new" }] : [],
    children: id % 4 ? 0 : 24, children_is_at_least: false, command: `shoal items show ${r.run_id} ${id}`,
  };
}

function failures(r) {
  const shapes = [
    ["http_error", "HTTP 503 from {host}", 812], ["timeout", "timed out after {n} s", 391], ["blocked", "challenge page: {text}", 120],
    ["parse", "no element for .price in {url}", 61], ["http_error", "HTTP 404 from {host}", 40], ["robots", "robots.txt forbids {path}", 11],
    ["crash", `ValueError: could not convert string to float: '${HOSTILE}'`, 4],
  ];
  return shapes.map(([outcome, message, n], k) => ({
    failure_id: `f${k}`, stage: k % 2 ? "detail" : "list", outcome, host: HOSTS[k % 5], message, items: n, items_is_at_least: false,
    first_at: iso(START - 7e6), last_at: iso(Date.now() - k * 61_000 - 4000), error: message.replace("{host}", HOSTS[k % 5]).replace("{n}", "30").replace("{url}", "https://books.example.com/a"),
    item_id: 5 + 10 * k, muted: k === 5, trend: Array.from({ length: 60 }, (_, m) => Math.floor(noise(k * 60 + m) * (n / 60) * (k === 0 && m > 45 ? 6 : 1) * 2)),
  }));
}

function events() {
  const list = [["lane.set", "books.example.com: 2/s, was 4/s"], ["pool.scale", "workers 24 to 40"], ["run.resume", ""], ["run.pause", ""], ["items.retry", "37 items"], ["run.create", ""]];
  return list.map(([action, text], k) => ({ event_id: 90 - k, at: iso(Date.now() - k * 1_900_000 - 60_000), actor: k % 2 ? "ops@127.0.0.1" : "cli", action, run_id: runId(0), subject: runId(0), detail: { text } }));
}

const overview = () => ({
  at: iso(Date.now()), runs: runs().slice(0, 20), workers: { live: 38, draining: 1, lost: 1, nodes: 3 },
  egress: [POOL], alerts: RUNS ? [{ at: iso(Date.now() - 312_000), kind: "errors", run_id: runId(0), scraper: "books", title: "books: error rate 6.1%", body: "Above 5% for 10 minutes.", delivery: "delivered" }] : [],
  ledger: { ok: ledgerOk, text: "PostgreSQL 16", size_bytes: 5_120_000_000, latency_seconds: 0.0021 }, empty: RUNS === 0,
});

function readItems(r, query) {
  const wanted = query.get("state");
  const from = Number(query.get("cursor") ?? 0);
  const rows = [];
  let id = from;
  while (rows.length < 50 && id < from + 600) {
    id += 1;
    const it = item(r, id);
    if (wanted && it.state !== wanted) continue;
    if (query.get("text") && !it.url.includes(query.get("text"))) continue;
    if (query.get("stage") && it.stage !== query.get("stage")) continue;
    rows.push(it);
  }
  const total = wanted ? r[wanted] : r.total;
  return { rows, cursor: rows.length === 50 ? String(id) : null, count: Math.min(10_000, total), count_is_at_least: total > 10_000 };
}

function answer(method, path, query, body) {
  if (path === "session") {
    loggedIn = method === "POST" && body?.token === "secret";
    return loggedIn || method === "DELETE" ? [200, {}] : [401, { error: { code: "unauthorized", message: "The token is not known.", hint: "Ask whoever runs the server." } }];
  }
  if (!loggedIn) return [401, { error: { code: "unauthorized", message: "Log in first.", hint: "" } }];
  if (path === "me") {
    return [200, { name: option("login", false) ? "ops" : "loopback", role: option("viewer", false) ? "viewer" : "operator", by: option("login", false) ? "session" : "loopback", expires_at: null, version: "0.3.0", project: "demo", ledger: "postgres://shoal@db/shoal", backend: "postgres", time: iso(Date.now()), login_required: false, csrf: "x", pages: [] }];
  }
  if (path === "mock/ledger") {
    ledgerOk = query.get("ok") === "1";
    return [200, {}];
  }
  if (!ledgerOk) return [503, { error: { code: "ledger_unavailable", message: "The ledger does not answer: connection refused.", hint: "Is PostgreSQL running?" } }];
  if (path === "overview") return [200, overview()];
  if (path === "runs") return [200, { rows: runs(), cursor: null }];
  const parts = path.split("/").map(decodeURIComponent);
  if (parts[0] === "runs") {
    const r = find(parts[1]);
    if (!r) return [404, { error: { code: "not_found", message: `There is no run ${parts[1]}.`, hint: "`shoal runs ls` lists them." } }];
    const n = runs().findIndex((each) => each.run_id === r.run_id);
    const [, , what, id, verb] = parts;
    if (method !== "GET") return write(r, n, what, id, verb, query, body);
    if (!what) return [200, detail(r)];
    if (what === "history") return [200, history(Number(query.get("minutes") ?? 60))];
    if (what === "why") return [200, { text: "Most items wait for books.example.com, which admits 2 starts per second.", since: iso(Date.now() - 4.1e6), until: null, reasons: detail(r).why, eta_seconds: r.eta_seconds, growing: r.growing, critical_lane: r.eta_seconds ? "books.example.com" : null, bottleneck: { cause: "host limit", share: 0.82, text: r.waiting_because } }];
    if (what === "partitions") return [200, { rows: partitionsOf(r).slice(0, 12), cursor: "12" }];
    if (what === "items") return [200, id ? itemDetail(r, Number(id)) : readItems(r, query)];
    if (what === "failures") return [200, { rows: failures(r).filter((f) => f.muted === (query.get("muted") === "true")), cursor: null }];
    if (what === "compare") return [200, { runs: [find(query.get("with") ?? "latest"), r].map((each) => ({ ...each, minutes: 42, ok_percent: 97.1, deaths: { "permanent, HTTP N": 12, timeout: 4 }, deaths_complete: true })), command: `shoal runs compare ${r.run_id}` }];
    if (what === "lanes") return [200, { rows: HOSTS.map((lane, k) => ({ lane, run_id: null, policy: { limit: 2, delay_min: 0.5, delay_max: 0.5, ordered: false, shared: true }, taken: 2, waiting: 4000 * (5 - k), leased: 2, done: 900, paused: false, ordered: false, critical: k === 0, eta_seconds: [9000 - k, 12_000 - k] })), cursor: null }];
  }
  if (path === "egress") return [200, { rows: overview().egress, cursor: null }];
  if (method !== "GET") return write(run(0), 0, parts[0], parts[1], parts[2], query, body);
  return [404, { error: { code: "not_found", message: "There is no such path.", hint: "" } }];
}

function write(r, n, what, id, verb, query, body) {
  const name = verb ?? id ?? what;
  const items = what === "items" || what === "failures" ? Math.min(body?.limit ?? 812, 812) : null;
  const command = `shoal ${what === "items" || what === "failures" ? `items ${name}` : `runs ${what}`} ${r.run_id}`;
  if (query.get("preview") === "true") return [200, { preview: true, items, items_is_at_least: false, text: items === null ? `To be changed: run ${r.run_id} (${what}).` : `To be changed (${name}): ${items} items of run ${r.run_id}.`, command }];
  if (what === "pause") paused.add(n);
  if (what === "resume") paused.delete(n);
  return [200, { text: items === null ? `Done: ${what} of run ${r.run_id}.` : `${items} items are changed (${name}).`, items, command, complete: true }];
}

const TYPES = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8", ".json": "application/json" };

function serveFile(path, response) {
  const inside = normalize(path).replace(/^(\.\.[/\\])+/, "");
  const file = extname(inside) ? inside : "index.html";
  try {
    let text = readFileSync(join(STATIC, file));
    if (file === "index.html") text = text.toString().replace('<base href="/">', `<base href="${BASE}">`);
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream", "Content-Security-Policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:" });
    response.end(text);
  } catch {
    response.writeHead(404).end();
  }
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (!url.pathname.startsWith(BASE)) return response.writeHead(404).end();
  const path = url.pathname.slice(BASE.length);
  if (!path.startsWith("api/v1/")) return serveFile(path, response);
  let text = "";
  request.on("data", (chunk) => (text += chunk));
  request.on("end", () => {
    const [status, body] = answer(request.method, path.slice(7), url.searchParams, text ? JSON.parse(text) : undefined);
    response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
  });
});

// Just enough of RFC 6455: unfragmented text frames from the browser, text frames to it.
server.on("upgrade", (request, socket) => {
  const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  let topics = [];
  let stopped = false;
  let cursor = 0;
  const send = (value) => {
    const body = Buffer.from(JSON.stringify(value));
    const head = body.length < 126 ? Buffer.from([0x81, body.length]) : body.length < 65_536 ? Buffer.from([0x81, 126, body.length >> 8, body.length & 255]) : Buffer.concat([Buffer.from([0x81, 127, 0, 0, 0, 0]), (() => { const b = Buffer.alloc(4); b.writeUInt32BE(body.length); return b; })()]);
    socket.write(Buffer.concat([head, body]));
  };
  socket.on("data", (data) => {
    if ((data[0] & 15) === 8) return socket.end();
    let length = data[1] & 127;
    let at = 2;
    if (length === 126) { length = data.readUInt16BE(2); at = 4; }
    const mask = data.subarray(at, at + 4);
    const message = JSON.parse(Buffer.from(data.subarray(at + 4, at + 4 + length).map((byte, k) => byte ^ mask[k % 4])).toString());
    if (message.subscribe) topics = message.subscribe;
    if ("pause" in message) stopped = message.pause;
  });
  socket.on("error", () => {});
  const timer = setInterval(() => {
    if (stopped) return;
    const changes = {};
    for (const topic of topics) {
      if (!ledgerOk) break;
      if (topic === "overview") changes.overview = overview();
      else if (topic.startsWith("run:")) {
        const found = find(topic.slice(4));
        if (found) changes[topic] = found;
      }
    }
    changes.ledger = { ok: ledgerOk, text: ledgerOk ? "" : "The ledger does not answer: connection refused." };
    send({ cursor: `m-${++cursor}`, at: iso(Date.now()), changes, snapshot: cursor === 1 });
  }, 1000);
  socket.on("close", () => clearInterval(timer));
});
server.listen(PORT, "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT}${BASE}`));
