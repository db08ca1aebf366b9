// One exchange: the life of every partition over time, its size, its readers.
"use strict";

const [LEFT, RIGHT, AXIS] = [58, 150, 20];
const ORDERS = {
  partition: "by number", longest: "the longest first", largest: "the largest first", begun: "by beginning", attempts: "the most attempts first",
};
const STEPS = ["AttemptStarted", "Produced", "Consumable", "TrackingStopped", "AttemptFailed", "Superseded", "Released", "Deleted"];
const most = (numbers) => numbers.reduce((largest, each) => (each > largest ? each : largest), 0);
const drawn = { order: "partition", only: "", rows: [], byPartition: new Map() };

function exchangeView() {
  const [tiles, hints, detail, reads] = Array.from({ length: 4 }, () => el("div"));
  const select = (name, entries, label) => el("select", {
    "aria-label": label, id: name, onchange: (event) => { drawn[name] = event.target.value; show(); },
  }, ...entries.map(([value, text]) => el("option", { value, selected: drawn[name] === value }, text)));
  const lives = el("canvas", { tabindex: 0, role: "img", id: "lives", onkeydown: walk, onmousemove: point, onmouseleave: unpoint, onclick: (event) => choose(rowAt(event)) });
  const readers = el("canvas", { role: "img", id: "readers", onmousemove: pointReader, onmouseleave: unpoint });
  const swatch = (kind, text) => el("span", {}, el("i", { class: `f-${kind}` }), text);
  const legend = el("p", { class: "legend" }, swatch("writing", "being written"), swatch("written", "written, not yet decided"),
    swatch("consumable", "consumable"), swatch("again", "lost, until it is made again"), swatch("released", "released, not yet deleted"),
    swatch("deleted", "deleted"), swatch("read", "a reader has ended"), el("span", {}, "pale: an attempt that does not count"));
  return {
    boxes: [tiles, hints,
      el("h2", {}, "Partitions over time"),
      el("div", { class: "bar" }, select("order", Object.entries(ORDERS), "Order"),
        select("only", [["", "all"], ["writing", "being written"], ["again", "lost"], ["pending", "not begun"], ["tried", "tried more than once"]], "Show"),
        el("span", { class: "dim", id: "shown" })),
      el("div", { class: "picture" }, lives, legend), detail, reads, el("div", { class: "picture" }, readers),
      keys("↑ ↓ partitions (in the picture)", "← → events", "Home first", "L live", "Esc back")],
    show: (values) => {
      put(tiles, exchangeTiles(values));
      put(hints, outlierList(values));
      arrange(values);
      drawLives(lives, values);
      put(reads, readsTitle(values));
      drawReaders(readers, values);
      if (String(now.route.partition) !== detail.dataset.partition || detail.dataset.event !== String(values.moment.event)) showDetail(detail, values);
    },
  };
}

function exchangeTiles({ exchange: it, job }) {
  const inputs = inputLinks(it.inputs, job, null);
  const known = PHASES.filter((phase) => it.reached[phase]).map((phase) => `${count(it.reached[phase])} ${WORDS[phase]}`);
  return [
    el("p", {}, pill(it), " ", el("bdi", {}, brief(it.label)), `, ${count(it.partitions)} × ${count(it.subpartitions)}`, inputs.length ? " from " : "", inputs, it.released === null ? "" : `, released: ${it.released}`),
    progress(it.reached, it.partitions, true), el("p", { class: "dim", id: "known" }, known.join(" · ")),
    el("div", { class: "tiles" },
      tile("consumable now", `${count(it.consumable_now)} of ${count(it.partitions)}`),
      tile("rows", count(it.rows)), tile("stored", bytes(it.stored_bytes)), tile("subpartitions read", `${count(it.consumed)} of ${count(it.subpartitions)}`),
      tile("read", bytes(it.read_bytes)), tile("puts, gets", `${count(it.puts)}, ${count(it.gets)}`),
      it.way ? tile("gets expected", count(it.predicted_gets)) : null, it.way ? tile("time to read expected", span(it.predicted_ms)) : null,
      it.way ? tile("way", it.way) : null,
      tile("price of requests", usd(it.price_usd)),
      tile("writing now", count(it.writing)), it.again ? tile("lost, made again now", count(it.again), "", "bad") : null,
      it.superseded ? tile("attempts superseded", count(it.superseded)) : null,
      it.throttled_puts + it.throttled_gets ? tile("throttled", count(it.throttled_puts + it.throttled_gets), "", "bad") : null),
  ];
}

const KINDS = {
  "written in ms": ["slow", (index) => `partition ${index}`, span],
  "stored bytes": ["large", (index) => `partition ${index}`, bytes],
  "read bytes": ["large for its reader", (index) => `subpartition ${index}`, bytes],
};

function outlierList({ outliers }) {
  if (!outliers.length) return [el("p", { class: "dim" }, "Even: nothing takes more than twice the median, in time or in bytes.")];
  return [el("div", { class: "bar", id: "outliers" }, outliers.map(({ what, index, amount, median }) => {
    const [word, name, size] = KINDS[what];
    const times = median ? `, ${(amount / median).toFixed(1)} × the median` : "";
    const text = `${name(index)} is ${word}: ${size(amount)}${times}`;
    return what === "read bytes" ? el("span", {}, text) : el("button", { "data-key": text, onclick: () => choose(index) }, text);
  }))];
}

// ---- the picture ----

function arrange({ attempts: a, phases, moment: at, first_ms }) {
  const by = new Map(phases.map((phase, index) => [index, { index, phase, tries: [], took: -1, size: -1, began: Infinity }]));
  a.partition.forEach((index, n) => {
    const own = by.get(index);
    if (!own) return;
    own.tries.push(n);
    const end = a.Produced[n] ?? (a.running[n] ? at.now_ms - first_ms : null);
    if (end !== null) own.took = Math.max(own.took, end - a.AttemptStarted[n]);
    if (a.wins[n] || own.size < 0) own.size = a.bytes[n] ?? own.size;
    own.began = Math.min(own.began, a.AttemptStarted[n]);
  });
  const sorts = {
    partition: (p, q) => p.index - q.index, longest: (p, q) => q.took - p.took || p.index - q.index,
    largest: (p, q) => q.size - p.size || p.index - q.index, begun: (p, q) => p.began - q.began || p.index - q.index,
    attempts: (p, q) => q.tries.length - p.tries.length || p.index - q.index,
  };
  const fits = (own) => !drawn.only || own.phase === drawn.only || (drawn.only === "tried" && own.tries.length > 1);
  drawn.byPartition = by;
  drawn.rows = [...by.values()].filter(fits).sort(sorts[drawn.order]);
  $("shown").textContent = drawn.only ? `${count(drawn.rows.length)} of ${plural(phases.length, "partition")}` : plural(phases.length, "partition");
}

function prepared(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.parentElement.clientWidth - 20;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return [pen, width];
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`);
}

function drawLives(canvas, values) {
  const { attempts: a, reads, moment: at, first_ms } = values, n = Math.max(1, drawn.rows.length);
  const high = Math.min(Math.max(n * 15, 60), 480), strip = 22, colour = colours();
  const [pen, width] = prepared(canvas, high + strip + AXIS), main = width - LEFT - RIGHT, each = high / n;
  const open = at.live && values.phases.some((phase) => phase !== "deleted");
  const after = open || !at.live ? 1 : 1.03; // shows that what is deleted is gone
  const last = after * Math.max(1, ...STEPS.map((kind) => most(a[kind])), most(reads.at), (open ? serverNow() : at.now_ms && !at.live ? at.now_ms : first_ms) - first_ms);
  const x = (ms) => LEFT + (main * Math.min(Math.max(ms, 0), last)) / last;
  canvas.drawn = { high, each, width, last, main, strip };
  axis(pen, x, last, high + strip, colour);
  const gap = each > 5 ? 1.5 : 0, thick = Math.max(each - gap, 1);
  const bar = (y, from, to, name) => {
    pen.fillStyle = colour(name);
    pen.fillRect(x(from), y, Math.max(1, x(to) - x(from)), thick);
  };
  const marks = [];
  drawn.rows.forEach((own, place) => {
    const y = place * each;
    const draw = (from, to, name) => {
      bar(y, from, to, name);
      if (name === "lost") marks.push([y, from, to]);
    };
    own.tries.forEach((n, k) => drawTry(a, n, own.tries.slice(k + 1), last, draw, pen));
  });
  pen.fillStyle = colour("lost"); // on top, and never thinner than can be seen
  for (const [y, from, to] of marks) pen.fillRect(x(from), y, Math.max(2, x(to) - x(from)), Math.max(thick, 2));
  drawSizes(pen, width, each, thick, high, colour);
  pen.fillStyle = colour("dim");
  const step = Math.max(1, Math.ceil(14 / each));
  for (let place = 0; place < drawn.rows.length; place += step) pen.fillText(drawn.rows[place].index, 2, Math.max(9, place * each + Math.min(each, 15) / 2 + 4));
  pen.fillText("readers", 2, high + 15);
  pen.fillStyle = colour("read");
  pen.globalAlpha = reads.at.length > 400 ? 0.35 : 0.9;
  for (const ms of reads.at) pen.fillRect(x(ms) - 0.75, high + 5, 1.5, strip - 8);
  pen.globalAlpha = 1;
  const chosen = drawn.rows.findIndex((own) => String(own.index) === now.route.partition);
  if (chosen >= 0) {
    pen.strokeStyle = colour("ink");
    pen.strokeRect(LEFT - 2.5, chosen * each - 0.5, width - LEFT + 2, Math.max(thick, 3) + 1);
  }
  canvas.setAttribute("aria-label", `${drawn.rows.length} partitions over ${span(last)}. ${$("known").textContent}`);
}

function drawTry(a, n, later, last, bar, pen) {
  const lost = a.TrackingStopped[n], over = lost ?? a.AttemptFailed[n] ?? a.Superseded[n];
  const [began, produced, decided, gone, deleted] = [a.AttemptStarted[n], a.Produced[n], a.Consumable[n], a.Released[n], a.Deleted[n]];
  const ends = over ?? gone ?? deleted ?? last, counts = a.wins[n] || decided !== null;
  pen.globalAlpha = counts || (over === null && a.running[n]) ? 1 : 0.4;
  bar(began, produced ?? ends, "writing");
  if (produced !== null) bar(produced, decided ?? ends, "written");
  if (decided !== null) bar(decided, ends, "consumable");
  if (lost !== null) {
    const next = later.map((m) => a.Consumable[m]).find((ms) => ms !== null && ms >= lost);
    bar(lost, next ?? gone ?? last, "lost");
  } else if (gone !== null && over === null) {
    bar(gone, deleted ?? last, "released");
  }
  if (deleted !== null && deleted < last && lost === null) bar(deleted, last, "deleted");
  pen.globalAlpha = 1;
}

function axis(pen, x, last, bottom, colour) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].map((s) => s * 1000);
  const step = [10, 20, 50, 100, 200, 500, ...steps].find((size) => last / size <= 10) || 86400000 * Math.ceil(last / 864000000);
  const [unit, size] = step >= 86400000 ? ["days", 86400000] : step >= 3600000 ? ["h", 3600000] : step >= 60000 ? ["min", 60000] : ["s", 1000];
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("dim");
  for (let ms = 0; ms <= last; ms += step) {
    pen.beginPath();
    pen.moveTo(Math.round(x(ms)) + 0.5, 0);
    pen.lineTo(Math.round(x(ms)) + 0.5, bottom);
    pen.stroke();
    const text = `${ms / size} ${unit}`;
    if (x(ms) + pen.measureText(text).width < x(last) + RIGHT / 4) pen.fillText(text, x(ms) + 2, bottom + 14);
  }
}

function drawSizes(pen, width, each, thick, high, colour) {
  const top = Math.max(1, most(drawn.rows.map((own) => own.size))), room = RIGHT - 24, start = width - room;
  pen.fillStyle = colour("read");
  drawn.rows.forEach((own, place) => { if (own.size > 0) pen.fillRect(start, place * each, Math.max(1, (room * own.size) / top), thick); });
  pen.fillStyle = colour("dim");
  pen.fillText(`stored, up to ${bytes(top > 1 ? top : 0)}`, start, high + 15);
}

// ---- pointing, choosing ----

function rowAt(event) {
  const canvas = $("lives"), { high, each } = canvas.drawn;
  const y = event.clientY - canvas.getBoundingClientRect().top;
  return y < 0 || y >= high ? null : drawn.rows[Math.floor(y / each)]?.index ?? null;
}

function tip(event, text) {
  const box = $("tip");
  box.textContent = text;
  box.hidden = false;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8)}px`;
}
const unpoint = () => { $("tip").hidden = true; };

function point(event) {
  const own = drawn.byPartition.get(rowAt(event));
  if (!own) { unpoint(); return; }
  const a = now.values.attempts;
  const lines = own.tries.map((n) => {
    const size = a.bytes[n] === null ? "" : `, ${count(a.rows[n])} rows, ${bytes(a.bytes[n])}`;
    const took = a.Produced[n] === null ? "" : ` in ${span(a.Produced[n] - a.AttemptStarted[n])}`;
    return `attempt ${a.name[n]} on ${brief(a.host[n], 60)}${took}${size}`;
  });
  tip(event, [`partition ${own.index}: ${WORDS[own.phase]}`, ...lines].join("\n"));
}

function choose(index) {
  if (index === null || index === undefined) return;
  rewrite({ partition: String(index) });
  show();
}

function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
  if (!step || !drawn.rows.length) return;
  event.preventDefault();
  event.stopPropagation();
  const place = drawn.rows.findIndex((own) => String(own.index) === now.route.partition);
  choose(drawn.rows[Math.min(Math.max(place < 0 ? 0 : place + step, 0), drawn.rows.length - 1)].index);
}

async function showDetail(box, values) {
  const { job, result, partition } = now.route;
  box.dataset.partition = String(partition);
  box.dataset.event = String(values.moment.event);
  if (partition === null) {
    put(box, el("p", { class: "dim" }, "Choose a partition in the picture to see its attempts, and why each was made."));
    return;
  }
  const event = box.dataset.event;
  const given = values.moment.offset === null ? {} : { at: values.moment.offset };
  const { attempts, error } = await ask("partition", { job, result, partition, ...given });
  if (now.route.partition !== partition || box.dataset.event !== event) return; // a newer answer comes
  if (error) { put(box, el("p", { class: "bad" }, error)); return; }
  const a = values.attempts;
  const time = (kind, n) => (n < 0 || a[kind][n] === null ? "" : moment(values.first_ms + a[kind][n]));
  const rows = attempts.map((each) => {
    const name = each.attempt.split("/").pop();
    const n = a.partition.findIndex((index, at) => String(index) === partition && a.name[at] === name);
    return row(name, words(n < 0 ? "" : a.host[n]), time("AttemptStarted", n), time("Produced", n), time("Consumable", n),
      number(n < 0 || a.rows[n] === null ? "" : count(a.rows[n])), number(n < 0 || a.bytes[n] === null ? "" : bytes(a.bytes[n])),
      words(each.reason), words(each.outcome),
      el("td", {}, each.offsets.flatMap((offset, k) => [k ? ", " : "", link(["job", job, result], { at: offset, partition }, String(offset))])));
  });
  const columns = [["attempt"], ["host"], ["began"], ["produced"], ["consumable"], ["rows", "n"], ["bytes", "n"], ["why it was made"], ["outcome"], ["offsets"]];
  put(box, el("h2", {}, `Partition ${partition} `, el("small", {}, "every attempt, and why it was made")), table(columns, rows, "No attempt yet."));
}

// ---- readers ----

const readsTitle = ({ reads, exchange: it }) => el("h2", {}, "Readers ", el("small", {}, reads.at.length
  ? `bytes of each reader, over the ${plural(it.subpartitions, "subpartition")}` : "nothing has been read yet"));

function largestReads({ reads: r }) {
  const largest = new Map();
  r.first.forEach((first, n) => { if (!largest.has(first) || r.bytes[n] > r.bytes[largest.get(first)]) largest.set(first, n); });
  return [...largest.values()];
}

function drawReaders(canvas, values) {
  const high = 84, colour = colours(), r = values.reads, all = Math.max(1, values.exchange.subpartitions);
  canvas.parentElement.hidden = !r.at.length;
  if (!r.at.length) return;
  const [pen, width] = prepared(canvas, high + AXIS), main = width - LEFT;
  const chosen = largestReads(values), top = Math.max(1, most(chosen.map((n) => r.bytes[n])));
  const x = (index) => LEFT + (main * index) / all;
  canvas.drawn = { main, all, chosen };
  pen.fillStyle = colour("pending");
  pen.fillRect(LEFT, high - 3, main, 3);
  pen.fillStyle = colour("read");
  for (const n of chosen) {
    const tall = Math.max(3, (high * r.bytes[n]) / top), wide = x(r.first[n] + r.count[n]) - x(r.first[n]);
    pen.fillRect(x(r.first[n]), high - tall, Math.max(1, wide - (wide > 4 ? 1 : 0)), tall);
  }
  pen.fillStyle = colour("dim");
  pen.fillText(bytes(top), 2, 10);
  const step = Math.max(1, Math.ceil((all * 46) / main));
  for (let index = 0; index < all; index += step) pen.fillText(index, x(index) + 2, high + 14);
  canvas.setAttribute("aria-label", `${chosen.length} readers, at most ${bytes(top)} each`);
}

function pointReader(event) {
  const canvas = $("readers"), { main, all, chosen } = canvas.drawn, r = now.values.reads;
  const index = Math.floor(((event.clientX - canvas.getBoundingClientRect().left - LEFT) / main) * all);
  const n = chosen.find((it) => r.first[it] <= index && index < r.first[it] + r.count[it]);
  if (n === undefined) { unpoint(); return; }
  const of = r.count[n] === 1 ? `subpartition ${r.first[n]}` : `subpartitions ${r.first[n]} to ${r.first[n] + r.count[n] - 1}`;
  tip(event, `${of}: ${count(r.rows[n])} rows, ${bytes(r.bytes[n])}, ${plural(r.requests[n], "request")}\nread at ${moment(now.values.first_ms + r.at[n])}`);
}

// ---- keys, slider, clock ----

const goTo = (event) => want({ event: Math.max(1, event) });
function goLive() { now.stop?.abort(); rewrite({ at: null }); pulse(); want({}); }
const place = () => (now.values && now.values.moment ? now.values.moment.event : null);

$("slider").addEventListener("input", (event) => { goTo(Number(event.target.value)); });
$("first").addEventListener("click", () => goTo(1));
$("back").addEventListener("click", () => goTo(place() - 1));
$("forth").addEventListener("click", () => goTo(place() + 1));
$("live").addEventListener("click", goLive);
$("offset").addEventListener("change", (event) => {
  if (/^\d{1,18}$/.test(event.target.value)) { rewrite({ at: event.target.value }); want({}); }
});

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.key !== "Escape";
  if (typing && !(event.target.id === "search" && event.key === "ArrowDown")) return;
  const rows = [...document.querySelectorAll("tbody tr td:first-child a")];
  const at = rows.indexOf(document.activeElement);
  const acts = {
    "/": () => $("search")?.focus(),
    ArrowDown: () => rows[Math.min(at + 1, rows.length - 1)]?.focus(),
    ArrowUp: () => rows[Math.max(at - 1, 0)]?.focus(),
    Escape: () => { location.hash = address(partsOf(now.route).slice(0, now.route.result ? 2 : 0), { at: now.route.result ? now.route.at : null }); },
  };
  if (place() !== null) {
    Object.assign(acts, { ArrowLeft: () => goTo(place() - 1), ArrowRight: () => now.route.at !== null && goTo(place() + 1), Home: () => goTo(1), l: goLive, L: goLive });
  }
  if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
});
addEventListener("hashchange", () => { enter(); $("main").focus({ preventScroll: true }); });
addEventListener("resize", show);
document.addEventListener("visibilitychange", () => { connect(); if (!document.hidden) want({}); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
setInterval(() => {
  if (now.route.at !== null || document.hidden) return;
  const job = now.values?.report && now.values.job; // heartbeats, and their end, are no events
  if (job && job.state !== "ended" && performance.now() > now.asked_ms + BEATS_MS) want(now.again ?? {});
  if (performance.now() > now.again_ms) show(); // ages, and bars that grow
}, 1000);
enter();
