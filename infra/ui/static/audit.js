// What a viewer asks for: to verify the decisions of a job, and to compare it with the bucket.
"use strict";

async function ask(page, given) {
  try {
    const answer = await fetch(`/api/${page}?${new URLSearchParams(given)}`, { headers: { "Headgate-Page": "1" } });
    return await answer.json();
  } catch { return { error: "The server does not answer." }; }
}

async function showFsck(button, box) {
  button.disabled = true;
  put(box, el("p", { class: "dim" }, "reading the log and listing the objects of this job …"));
  const { clean, lines, error } = await ask("fsck", { job: now.route.job });
  button.disabled = false;
  if (error) { put(box, el("p", { class: "bad" }, error)); return; }
  const verdict = `${lines.pop()}, compared at ${moment(serverNow())}`;
  put(box, el("p", { class: clean ? "complete" : "bad" }, `${clean ? "✓ " : ""}${verdict}`),
    lines.length ? el("pre", { class: "scroll" }, lines.join("\n")) : null);
}

async function showAudit(box) {
  put(box, "verifying …");
  const { job, at } = now.route;
  const { audits, error, moment: place } = await ask("audit", at === null ? { job } : { job, at });
  if (error) { put(box, el("span", { class: "bad" }, error)); return; }
  put(box, audits.map((each) => {
    const counts = `${plural(each.facts, "fact")}, ${plural(each.decisions, "decision")}, ${each.due ? count(each.due) : "none"} still due`;
    if (!each.whole) return el("span", { class: "bad" }, "The first events and the snapshot are gone: not verified.");
    if (each.violation) return el("span", { class: "bad" }, `offset ${each.offset}: ${each.violation}`);
    const from = each.start === null ? "" : `, from the snapshot at offset ${each.start} on`;
    return el("span", { class: "complete" }, `✓ every decision follows from its facts: ${counts}${from}, up to offset ${place.offset}`);
  }));
}
