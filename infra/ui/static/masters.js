// The page of the masters: the members of the group, and the partitions for which they decide.
"use strict";

function mastersView() {
  const [tiles, masters, partitions] = Array.from({ length: 3 }, () => el("div"));
  return {
    boxes: [tiles, masters, partitions, keys("Esc back")],
    show: (values) => {
      put(tiles, groupTiles(values));
      put(masters, memberList(values));
      put(partitions, partitionList(values));
    },
  };
}

const sum = (rows, name) => rows.reduce((total, each) => total + each[name], 0);
const rate = (perSecond) => (perSecond === 0 ? "0" : perSecond < 10 ? perSecond.toFixed(2) : count(Math.round(perSecond)));

function ranges(numbers) {
  const runs = [];
  for (const n of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
}

function groupTiles({ jobs, masters, partitions }) {
  const members = masters.filter((each) => each.is_member);
  const unheld = partitions.filter((each) => each.slot === null).length;
  const due = sum(partitions, "due");
  const says = members.length
    ? unheld ? ["bad", `${plural(unheld, "partition")} without a master: its jobs wait until the group has shared it out.`] : null
    : jobs ? ["bad", `${plural(jobs, "job")} of mode session, and no master: start \`headgate master\`.`]
      : ["dim", "No master belongs to the group. Jobs of mode per-job do not need one: their drivers decide, as the page of each job shows."];
  return [
    says ? el("p", { class: says[0], id: "group" }, says[1]) : null,
    members.length ? el("div", { class: "tiles" },
      tile(members.length === 1 ? "master" : "masters", count(members.length)),
      tile("partitions held", `${count(partitions.length - unheld)} of ${count(partitions.length)}`, "", unheld ? "bad" : ""),
      tile("jobs of mode session", count(jobs)), tile("decisions due", count(due), "decisions that follow from facts and are not in the log yet"),
      tile("decisions a second", rate(sum(masters, "decisions_per_s")), "mean of the last minute")) : null,
  ];
}

function memberList({ masters }) {
  if (!masters.length) return [];
  const rows = masters.map((each) => row(
    words(each.slot), el("td", {}, el("span", { class: `state ${each.is_member ? "running" : "neglected"}` }, each.is_member ? "member" : "not in the group")),
    each.host || "-", words(ranges(each.partitions) || "-"), number(count(each.jobs)), number(count(each.due)), number(rate(each.decisions_per_s)),
    number(each.last_ms === null ? "-" : span(serverNow() - each.last_ms), each.last_ms === null ? null : moment(each.last_ms)),
    each.last_job === null ? "" : link(["job", each.last_job], {}, each.last_job)));
  return [el("h2", {}, "Masters ", el("small", {}, "those that belong to the group, and those that have decided in the last hour")),
    table([["slot"], ["state"], ["machine"], ["partitions"], ["jobs", "n"], ["decisions due", "n"], ["decisions a second", "n"], ["last decision before", "n"], ["for job"]], rows, "")];
}

function partitionList({ masters, partitions }) {
  if (!masters.length) return [];
  const rows = partitions.map((each) => row(
    count(each.partition), each.slot === null ? el("td", { class: "bad" }, "nobody") : words(each.slot), number(count(each.jobs)),
    number(count(each.due)), number(each.decided === null ? "-" : count(each.decided)), number(count(each.end)), number(each.lag === null ? "-" : count(each.lag))));
  return [el("h2", {}, "Partitions ", el("small", {}, "decisions that are due wait for their master; the lag counts every record since its last step, needed or not")),
    table([["partition"], ["decided by"], ["jobs", "n"], ["decisions due", "n"], ["last step up to", "n"], ["end of the log", "n"], ["lag", "n"]], rows, "")];
}
