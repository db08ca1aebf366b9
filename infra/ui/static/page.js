// The live page. All counts come whole from the server; this file lays them out and draws them.
// Text from the log only ever becomes text nodes and attributes: nothing here parses markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const GRAPH_MAX = 60;
const BEATS_MS = 5000; // a job at which somebody looks is asked for so often, without an event
const DRAWING_SHARE = 10; // to draw ages and bars again takes at most this part of the time
const PHASES = ["consumable", "writing", "again", "released", "deleted", "pending"];
const WORDS = {
  pending: "not begun", writing: "being written", consumable: "consumable",
  again: "lost, made again", released: "released", deleted: "deleted",
};

// ---- text ----

// Made once: to make one takes as long as to format a hundred numbers with it.
const NUMBERS = new Intl.NumberFormat("en");
const DOLLARS = new Intl.NumberFormat("en", { maximumFractionDigits: 4 });
const DAYS = new Intl.DateTimeFormat("sv");
const TIMES = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const count = (n) => NUMBERS.format(n);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const usd = (n) => (n === 0 ? "$0" : n < 0.000001 ? "< $0.000001" : n < 0.01 ? `$${n.toFixed(6)}` : `$${DOLLARS.format(n)}`);

function bytes(n) {
  if (n < 1000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB", "PB"];
  let at = -1;
  while (n >= 999.95 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${n.toFixed(1)} ${units[at]}`;
}

function span(ms) {
  if (ms < 0) return "0 s";
  for (const [unit, size] of [["days", 86400000], ["h", 3600000], ["min", 60000]]) {
    if (ms >= 2 * size) return `${Math.floor(ms / size)} ${unit}`;
  }
  return ms < 10000 ? `${(ms / 1000).toFixed(ms < 1000 ? 2 : 1)} s` : `${Math.floor(ms / 1000)} s`;
}

function moment(ms) {
  const at = new Date(ms);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${DAYS.format(at)} `;
  return `${day}${TIMES.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

// ---- elements ----

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== false));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const state = (word) => el("span", { class: `state ${word}` }, word);
const condition = (job) => el("span", { class: `state ${job.state}` }, job.state === "silent" ? `silent since ${moment(job.heard_ms)}` : job.state);
const tile = (title, value, more = "", kind = "") =>
  el("div", { class: "tile", title: more }, el("b", { class: kind }, value), el("span", {}, title));

function put(box, ...children) {
  const active = document.activeElement;
  const key = box.contains(active) ? active.dataset.key : undefined;
  const wanted = children.flat().filter((child) => child !== null && child !== false);
  change(box, wanted.map((child) => (child instanceof Node ? child : document.createTextNode(child))));
  if (key && !box.contains(active)) box.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

// Whatever is the same stays: what somebody presses, points at, has selected or scrolled.
function change(box, wanted) {
  wanted.forEach((next, at) => {
    const node = box.childNodes[at];
    if (!node) box.append(next);
    else if (node.isEqualNode(next)) return;
    else if (node.nodeName !== next.nodeName || node.dataset?.key !== next.dataset?.key) node.replaceWith(next);
    else if (node instanceof Text) node.data = next.data;
    else {
      for (const { name } of [...node.attributes]) if (!next.hasAttribute(name)) node.removeAttribute(name);
      for (const { name, value } of next.attributes) if (name !== "style") node.setAttribute(name, value);
      node.style.cssText = next.style.cssText; // as an attribute, the policy of the page forbids it
      change(node, [...next.childNodes]);
    }
  });
  while (box.childNodes.length > wanted.length) box.lastChild.remove();
}

function link(parts, parameters, ...children) {
  const href = address(parts, parameters);
  return el("a", { href, "data-key": href }, ...children);
}

function table(columns, rows, empty) {
  const cell = ([title, kind]) => el("th", { class: kind || null, scope: "col" }, title);
  const body = rows.length ? rows : [el("tr", { class: "empty" }, el("td", { colspan: columns.length }, empty))];
  const head = el("thead", {}, el("tr", {}, ...columns.map(cell)));
  return el("div", { class: "scroll" }, el("table", {}, head, el("tbody", {}, ...body)));
}
const row = (...cells) => el("tr", {}, ...cells.map((c) => (c instanceof HTMLTableCellElement ? c : el("td", {}, c))));
const number = (text, title = null) => el("td", { class: "n", title }, text);
const brief = (text, most = 400) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const words = (text) => el("td", { class: "text", title: brief(text) === text ? null : text }, brief(text));

function progress(reached, total, wide = false) {
  const parts = PHASES.filter((phase) => reached[phase]);
  const bars = parts.map((phase) => {
    const bar = el("i", { class: `f-${phase}` });
    bar.style.width = `${(100 * reached[phase]) / Math.max(1, total)}%`;
    return bar;
  });
  const title = parts.map((phase) => `${count(reached[phase])} ${WORDS[phase]}`).join(", ");
  return el("span", { class: wide ? "progress wide" : "progress", role: "img", title, "aria-label": title }, ...bars);
}

// ---- where we are ----

const now = {
  route: null, values: null, ahead_ms: 0, busy: false, stop: null, again: null, view: null, again_ms: 0, asked_ms: 0,
};
const serverNow = () => Date.now() + now.ahead_ms;

function address(parts, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

function here() {
  const [path, query] = location.hash.slice(1).split("?");
  const plain = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const [page, job, result] = path.split("/").filter(Boolean).map(plain);
  const given = new URLSearchParams(query || "");
  const [at, partition] = [given.get("at"), given.get("partition")];
  return page === "masters" ? { masters: true, job: null, result: null, at: null, partition: null }
    : { masters: false, job: job || null, result: result || null, at, partition };
}

const partsOf = (route) => (route.masters ? ["masters"] : route.job ? ["job", route.job, ...(route.result ? [route.result] : [])] : []);

function rewrite(changes) {
  Object.assign(now.route, changes);
  const { at, partition } = now.route;
  history.replaceState(null, "", address(partsOf(now.route), { at, partition }));
  showPath();
}

function showPath() {
  const { masters, job, result, at } = now.route;
  const steps = [link([], {}, "Headgate")];
  if (masters) steps.push(el("span", {}, "›"), link(["masters"], {}, "masters"));
  if (job) steps.push(el("span", {}, "›"), link(["job", job], { at }, job));
  if (result) steps.push(el("span", {}, "›"), link(["job", job, result], { at }, result));
  put($("path"), steps);
  document.title = [result, job, masters && "Masters", "Headgate"].filter(Boolean).join(" · ");
}

function enter() {
  now.route = here();
  now.values = null;
  now.view = now.route.result ? exchangeView() : now.route.job ? jobView() : now.route.masters ? mastersView() : jobsView();
  $("main").replaceChildren(el("p", { class: "dim" }, "Reading the log …"));
  $("moment").hidden = !now.route.job;
  $("tip").hidden = true;
  showPath();
  const route = now.route;
  if (stream) stream.close();
  now.stop?.abort();
  want({}).finally(() => { if (route === now.route) connect(); });
}

// ---- values from the server ----

function source(more) {
  const { masters, job, result, at } = now.route;
  if (masters) return "/api/masters";
  const given = new URLSearchParams(job ? { job } : {});
  if (result) given.set("result", result);
  if (more.event) given.set("event", more.event);
  else if (at !== null) given.set("at", at);
  return `/api/${result ? "exchange" : job ? "job" : "jobs"}?${given}`;
}

function problem(text) {
  $("problem").textContent = text;
  $("problem").hidden = !text;
  pulse();
}

async function want(more) {
  if (now.busy) { now.again = more; return; }
  now.busy = true;
  now.asked_ms = performance.now();
  now.stop = new AbortController();
  const route = now.route;
  try {
    const answer = await fetch(source(more), { signal: now.stop.signal });
    const text = await answer.text();
    if (route === now.route) take(answer, text, more);
  } catch (error) {
    if (error instanceof TypeError) problem("The server does not answer.");
    else if (error.name !== "AbortError") throw error;
  } finally {
    now.busy = false;
    if (now.again !== null) { const next = now.again; now.again = null; want(next); }
  }
}

function take(answer, text, more) {
  if (!answer.ok) {
    let reason = text;
    try { reason = JSON.parse(text).error; } catch { /* plain text */ }
    problem(reason);
    if (!now.values) $("main").replaceChildren();
    return;
  }
  problem("");
  now.values = JSON.parse(text);
  const at = now.values.moment;
  if (at ? at.live : true) now.ahead_ms = (at ? at.now_ms : now.values.now_ms) - Date.now();
  if (more.event && at) rewrite({ at: at.offset });
  show();
  if (at && now.again === null) $("slider").value = at.event; // nobody has moved it on
}

function show() {
  if (!now.values) return;
  const began = performance.now();
  if (now.values.moment) showMoment(now.values.moment);
  if (!$("main").contains(now.view.boxes[0])) $("main").replaceChildren(...now.view.boxes);
  now.view.show(now.values);
  void $("main").offsetHeight; // lay it out now: that is most of the time for a thousand jobs
  const ended = performance.now();
  now.again_ms = ended + DRAWING_SHARE * (ended - began);
}

function showMoment(at) {
  const slider = $("slider");
  slider.max = Math.max(1, at.events);
  if (document.activeElement !== slider || !now.busy) slider.value = at.event;
  $("moment").classList.toggle("past", !at.live);
  $("live").setAttribute("aria-pressed", String(at.live));
  $("first").disabled = $("back").disabled = at.event <= 1;
  $("forth").disabled = at.live || at.event >= at.events;
  if (document.activeElement !== $("offset")) $("offset").value = at.offset ?? "";
  const time = at.time_ms === null ? "before the first event" : moment(at.time_ms);
  $("when").textContent = `event ${count(at.event)} of ${count(at.events)} · ${time}`;
  slider.setAttribute("aria-valuetext", $("when").textContent);
  pulse();
}

let stream = null;
let connected = false;
function connect() {
  if (stream) stream.close();
  connected = false;
  if (document.hidden) return;
  const { masters, job } = now.route;
  const mine = new EventSource(`/api/news?${new URLSearchParams(masters ? { masters } : job ? { job } : {})}`);
  stream = mine;
  mine.onopen = () => { connected = true; pulse(); };
  mine.onmessage = (message) => {
    const news = JSON.parse(message.data);
    if (news.error) problem(news.error);
    else if (!$("problem").hidden || !now.values || !now.values.moment || news.events !== now.values.moment.events) want(now.again ?? {});
  };
  mine.onerror = () => {
    connected = false;
    pulse();
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => { if (stream === mine) connect(); }, 5000);
  };
  pulse();
}

function pulse() {
  const past = now.route && now.route.at !== null, well = $("problem").hidden;
  $("pulse").className = connected && well ? (past ? "" : "live") : "lost";
  $("pulse").textContent = !connected ? "not connected" : !well ? "no answer" : past ? "in the past" : "live";
}

// ---- the list of jobs ----

const listed = { search: "", state: "", sort: "began_ms", down: true };
const JOB_COLUMNS = [
  ["job", "job"], ["state", "state"], ["decides", "mode"], ["application", "application"],
  ["exchanges", "exchanges", "n"], ["stored now", "stored_bytes", "n"], ["written", "written_bytes", "n"],
  ["read", "read_bytes", "n"], ["price", "price_usd", "n"], ["age", "began_ms", "n"], ["heard before", "heard_ms", "n"],
];

function jobsView() {
  const states = el("span", { class: "bar" });
  const box = el("div");
  const search = el("input", {
    type: "search", id: "search", placeholder: "Search jobs and applications ( / )", "aria-label": "Search jobs",
    oninput: () => { listed.search = search.value; show(); },
  });
  search.value = listed.search;
  return { boxes: [el("div", { class: "bar" }, search, states), box, keys("/ search", "↑ ↓ rows", "Enter open")], show: (values) => showJobs(values, states, box) };
}

function showJobs(values, states, box) {
  const text = listed.search.toLowerCase();
  const matching = values.jobs.filter((job) => `${job.job}\n${job.application}`.toLowerCase().includes(text));
  const tally = new Map();
  for (const job of matching) tally.set(job.state, (tally.get(job.state) || 0) + 1);
  if (listed.state && !tally.has(listed.state)) tally.set(listed.state, 0);
  const chip = (name, n) => el("button", {
    "aria-pressed": String(listed.state === name), "data-key": `state ${name}`,
    onclick: () => { listed.state = name; show(); },
  }, `${name || "all"} ${count(n)}`);
  put(states, chip("", matching.length), [...tally].map(([name, n]) => chip(name, n)));
  const shown = matching.filter((job) => !listed.state || job.state === listed.state);
  const value = (job) => { const it = job[listed.sort]; return typeof it === "string" ? it.toLowerCase() : it; };
  shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (listed.down ? -1 : 1));
  put(box, table(JOB_COLUMNS.map(jobHead), shown.map(jobRow), values.jobs.length ? "No job matches." : "The log has no jobs yet."));
  for (const [at, [, name]] of JOB_COLUMNS.entries()) {
    if (name === listed.sort) box.querySelectorAll("th")[at].setAttribute("aria-sort", falls(name) ? "descending" : "ascending");
  }
}

const falls = (name) => listed.down !== name.endsWith("_ms"); // ages are shown, times compared

function jobHead([title, name, kind]) {
  const sort = () => {
    listed.down = listed.sort === name ? !listed.down : kind === "n";
    listed.sort = name;
    show();
  };
  const mark = listed.sort === name ? (falls(name) ? " ↓" : " ↑") : "";
  return [el("button", { onclick: sort, "data-key": `sort ${title}` }, title + mark), kind];
}

function jobRow(job) {
  return row(
    link(["job", job.job], {}, job.job), el("td", { title: job.closed || job.failed }, condition(job)),
    decides(job), words(job.application), number(count(job.exchanges)), number(bytes(job.stored_bytes)),
    number(bytes(job.written_bytes)), number(bytes(job.read_bytes)), number(usd(job.price_usd)),
    number(job.began_ms ? span(serverNow() - job.began_ms) : "-", job.began_ms ? `began ${moment(job.began_ms)}` : null),
    number(job.heard_ms ? span(serverNow() - job.heard_ms) : "-", lease(job)),
  );
}

const decides = (job) => (job.mode === "session" ? "masters" : "driver");
const lease = (job) => (job.lease_ms ? `lease ${span(job.lease_ms)}` : "no lease");
const keys = (...names) => el("p", { class: "dim" }, `Keys: ${names.join(" · ")}`);

// ---- one job ----

function jobView() {
  const [tiles, graph, list, notable, masters, audit, bucket] = Array.from({ length: 7 }, () => el("div"));
  const fsck = el("button", { id: "fsck", onclick: () => showFsck(fsck, bucket) }, "Compare with the bucket now");
  const verify = el("button", { id: "verify", onclick: () => showAudit(audit) }, "Verify every decision now");
  return {
    boxes: [tiles, graph, list, notable, masters, el("h2", {}, "Audit"), el("div", { class: "bar" }, verify, fsck), audit, bucket,
      keys("← → events", "Home first", "L live", "↑ ↓ rows", "Esc back")],
    show: (values) => {
      put(tiles, jobTiles(values));
      put(graph, exchangeGraph(values));
      put(list, exchangeList(values));
      put(notable, notableList(values));
      put(masters, masterList(values));
    },
  };
}

function jobTiles({ job, report, moment: at }) {
  const lost = report.exchanges.reduce((sum, each) => sum + each.again, 0);
  const superseded = report.exchanges.reduce((sum, each) => sum + each.superseded, 0);
  const whole = report.exchanges.filter((each) => each.complete || each.released !== null).length;
  const until = at.live ? serverNow() : at.now_ms;
  const why = job.failed || job.closed;
  return [
    el("div", { class: "tiles" },
      tile(`decided by ${job.mode === "session" ? "the masters" : "its driver"}, epoch ${job.epoch}`, condition(job)),
      tile("exchanges done", `${whole + report.forgotten} of ${job.exchanges}`, report.forgotten ? `${report.forgotten} are no longer listed` : ""),
      tile("written", bytes(job.written_bytes)), tile("stored now", bytes(job.stored_bytes)), tile("read", bytes(job.read_bytes)),
      tile("puts, gets", `${count(report.puts)}, ${count(report.gets)}`),
      tile("price of requests", usd(report.price_usd), "by the list prices of S3 Standard in us-east-1"),
      lost ? tile("lost, made again now", count(lost), "", "bad") : null, superseded ? tile("attempts superseded", count(superseded)) : null,
      report.throttled_puts + report.throttled_gets ? tile("throttled", count(report.throttled_puts + report.throttled_gets), "", "bad") : null,
      tile("age", job.began_ms ? span(until - job.began_ms) : "-"),
      tile(`driver heard before, ${lease(job)}`, job.heard_ms ? span(until - job.heard_ms) : "-")),
    why ? el("p", { class: job.failed ? "bad" : "dim" }, `${job.failed ? "Failed" : "Ended"}: ${why}`) : null,
  ];
}

function related(all) {
  // The newest exchanges that are connected by inputs: those of the newest query.
  const near = new Map([...all.keys()].map((name) => [name, []]));
  for (const each of all.values()) {
    for (const input of each.inputs) if (all.has(input)) { near.get(input).push(each.result); near.get(each.result).push(input); }
  }
  const last = [...all.keys()].reverse().find((name) => near.get(name).length);
  const seen = new Set(), left = last === undefined ? [] : [last];
  while (left.length) {
    const name = left.pop();
    if (!seen.has(name)) { seen.add(name); left.push(...near.get(name)); }
  }
  return new Map([...all].filter(([name]) => seen.has(name)));
}

function exchangeGraph({ report, job }) {
  const known = related(new Map(report.exchanges.map((each) => [each.result, each])));
  if (known.size < 2) return [];
  const title = el("h2", {}, "Exchanges that belong together ", el("small", {}, "the newest, from inputs to outputs"));
  if (known.size > GRAPH_MAX) return [title, el("p", { class: "dim" }, `They are ${count(known.size)}: up to ${GRAPH_MAX} are drawn.`)];
  const depths = new Map(), columns = [], places = new Map();
  const depth = (name, below = 0) => {
    if (!depths.has(name)) {
      const inputs = known.get(name).inputs.filter((input) => known.has(input));
      depths.set(name, below > known.size ? 0 : Math.max(-1, ...inputs.map((input) => depth(input, below + 1))) + 1);
    }
    return depths.get(name);
  };
  for (const name of known.keys()) (columns[depth(name)] ||= []).push(name);
  const [wide, high, gap, air] = [184, 61, 48, 14];
  for (const [x, names] of columns.entries()) names.forEach((name, y) => places.set(name, [12 + x * (wide + gap), 12 + y * (high + air)]));
  const width = columns.length * (wide + gap) - gap + 24;
  const height = Math.max(...columns.map((names) => names.length)) * (high + air) - air + 24;
  const edges = [...known.values()].flatMap((each) => each.inputs.filter((input) => places.has(input)).map((input) => {
    const [[x, y], [to, down]] = [places.get(input), places.get(each.result)];
    const middle = (x + wide + to) / 2;
    return svg("path", { d: `M${x + wide} ${y + high / 2}C${middle} ${y + high / 2} ${middle} ${down + high / 2} ${to} ${down + high / 2}`, fill: "none", stroke: "var(--dim)", "stroke-width": 1.5 });
  }));
  const nodes = [...known.values()].map((each) => {
    const [x, y] = places.get(each.result);
    const href = address(["job", job.job, each.result], { at: now.route.at });
    const part = (each.reached.consumable || 0) + (each.reached.released || 0) + (each.reached.deleted || 0);
    const colour = each.again ? "--lost" : each.released !== null ? "--released" : each.complete ? "--consumable" : "--writing";
    const { registered, ResultComplete: whole, read_first: first, read_last: last } = each.times;
    const took = [whole === undefined || registered === undefined ? "" : `written in ${span(whole - registered)}`,
      last === undefined ? "" : `read in ${span(last - first)}`].filter(Boolean).join(", ");
    return svg("a", { href, "data-key": `node ${href}`, "aria-label": `exchange ${each.result}` },
      svg("title", {}, `${each.result} ${each.label}`),
      svg("rect", { x, y, width: wide, height: high, rx: 6, fill: "var(--over)", stroke: `var(${colour})`, "stroke-width": 1.5 }),
      svg("rect", { x: x + 8, y: y + high - 9, width: Math.max(0, (wide - 16) * part / Math.max(1, each.partitions)), height: 4, rx: 2, fill: `var(${colour})` }),
      svg("text", { x: x + 8, y: y + 16 }, brief(`${each.result} ${each.label}`, 25)),
      svg("text", { x: x + 8, y: y + 31, class: "dim" }, brief(`${count(each.rows)} rows, ${bytes(each.stored_bytes)}`, 29)),
      svg("text", { x: x + 8, y: y + 46, class: "dim" }, took));
  });
  return [title, el("div", { class: "graph" }, svg("svg", { width, height, role: "group", "aria-label": "Graph of exchanges" }, ...edges, ...nodes))];
}

function exchangeList({ report, job, moment: at }) {
  const until = at.live && ["running", "silent", "ending"].includes(job.state) ? serverNow() : Math.max(...report.exchanges.flatMap((each) => Object.values(each.times)), 0);
  const since = Math.min(...report.exchanges.map((each) => each.times.registered ?? until), until);
  const known = new Set(report.exchanges.map((each) => each.result));
  const rows = [...report.exchanges].reverse().map((each) => row(
    link(["job", job.job, each.result], { at: now.route.at }, each.result), words(each.label),
    el("td", {}, inputLinks(each.inputs, job.job, known)),
    el("td", { class: "n" }, `${count(each.partitions)} × ${count(each.subpartitions)}`), el("td", {}, pill(each)),
    el("td", {}, progress(each.reached, each.partitions)), el("td", {}, life(each, since, until)), number(count(each.rows)),
    number(bytes(each.stored_bytes)), number(bytes(each.read_bytes), `${count(each.consumed)} of ${count(each.subpartitions)} subpartitions`),
    number(usd(each.price_usd), `${plural(each.puts, "put")}, ${plural(each.gets, "get")}`)));
  const columns = [["exchange"], ["what"], ["inputs"], ["partitions", "n"], ["state"], ["progress"],
    [`life, ${span(Math.max(0, until - since))}`], ["rows", "n"], ["stored", "n"], ["read", "n"], ["price", "n"]];
  return [el("h2", {}, "All exchanges ", el("small", {}, "the newest first")), table(columns, rows, "No exchange yet.")];
}

const inputLinks = (inputs, job, known) => inputs.flatMap((input, n) =>
  [n ? ", " : "", known && !known.has(input) ? input : link(["job", job, input], { at: now.route.at }, input)]);

function pill(each) {
  const word = each.released !== null ? "released" : each.again ? "again" : each.complete ? "complete" : each.writing || each.reached.consumable ? "writing" : "pending";
  return el("span", { class: `state ${word}`, title: each.released || (each.tracked ? null : "another owner looks after it") },
    { again: "lost, made again", pending: "not begun" }[word] || word);
}

function life({ times, complete, released }, since, until) {
  const wide = 150;
  const x = (ms) => (wide * (ms - since)) / Math.max(1, until - since);
  const bar = (from, to, colour, y = 3, height = 8) => svg("rect", { x: x(from), y, height, width: Math.max(1.5, x(to) - x(from)), fill: `var(${colour})` });
  const whole = times.ResultComplete, gone = times.Released, deleted = times.Deleted;
  const bars = [];
  if (times.registered !== undefined) bars.push(bar(times.registered, whole ?? gone ?? until, "--writing"));
  if (whole !== undefined && (complete || released !== null)) bars.push(bar(whole, gone ?? until, "--consumable"));
  if (gone !== undefined) bars.push(bar(gone, deleted !== undefined && deleted >= gone ? deleted : until, "--released"));
  if (times.read_first !== undefined) bars.push(bar(times.read_first, times.read_last, "--read", 13, 3));
  return svg("svg", { width: wide, height: 18, role: "img", "aria-label": "written, consumable, released over time" }, ...bars);
}

function notableList({ notable, job }) {
  const rows = notable.map((each) => row(
    link(["job", job.job], { at: each.offset }, count(each.offset)), moment(each.time_ms), each.kind, words(each.what), words(each.by),
    each.basis === null ? "" : link(["job", job.job], { at: each.basis }, `←${each.basis}`)));
  return [el("h2", {}, "Drivers, losses and repairs ", el("small", {}, "the newest first")),
    table([["offset"], ["time"], ["event"], ["what"], ["by"], ["because of"]], rows, "Nothing to tell.")];
}

function masterList({ authors }) {
  const rows = authors.map((each) => row(words(each.by), number(count(each.decisions)), number(count(each.first)), number(count(each.last)), moment(each.time_ms)));
  return [el("h2", {}, "Who has decided"), table([["master"], ["decisions", "n"], ["first", "n"], ["last", "n"], ["time of the last"]], rows, "Nobody yet.")];
}
