// The panels of one run: each takes the state and shows its part of it.

import { bars, colour, lines } from "./chart.js";
import { bytes, digits, make, pairs, percent, seconds, svg, text } from "./format.js";

const element = (id) => document.getElementById(id);

export function figures(state) {
  const p = state.progress;
  const of = p.total_steps ? ` of ${digits(p.total_steps)}` : "";
  const sampled = p.sampled_consensus;
  const rows = [
    ["loss", digits(p.loss), p.loss],
    ["accuracy", p.accuracy === null ? "–" : `${digits(p.accuracy * 100)} %`, p.accuracy],
    ["samples per second", digits(p.samples_per_second), p.samples_per_second],
    ["steps", `${digits(p.steps)}${of}`, p.steps],
    ["samples", digits(p.samples), p.samples],
    ["clock", `${digits(p.clock_seconds)} s`, p.clock_seconds],
    ["consensus distance", digits(p.consensus_distance), p.consensus_distance],
    ["goodput", percent(p.goodput), p.goodput],
  ];
  const { measured_samples_per_second: measured, predicted_samples_per_second: predicted } = state.advice;
  if (measured && predicted) rows.push(["samples/s, share of plan's", percent(measured / predicted), measured / predicted]);
  if (sampled && !state.summary) rows.push(["sampled distance", sampled.error > 0 ? `${digits(sampled.value, 3)} ± ${digits(sampled.error, 1)}` : digits(sampled.value, 6), sampled.value]);
  pairs(element("figures"), rows);
}

export function legends() {
  const key = (name, label) => [make("span", { className: `key ${name}` }), label];
  element("ranks-legend").replaceChildren(...key("compute", "compute"), ...key("exposed", "exposed communication"), ...key("waiting", "waiting for slower peers"));
  text(element("topology-legend"), "circles: workers, squares: servers; a crossed one was lost. A dashed edge has carried nothing for long, a dotted one had to send again, one of dashes and dots has long round trips.");
}

function rankRow(select, rank) {
  const cells = Array.from({ length: 12 }, () => make("td"));
  const button = make("button", { type: "button", className: "rank" });
  button.addEventListener("click", () => select({ rank }));
  cells[0].append(button);
  const parts = ["compute", "exposed", "waiting"].map((name) => make("span", { className: name }));
  cells[4].append(make("span", { className: "bar", role: "img" }, ...parts));
  return make("tr", {}, ...cells);
}

export function ranks(state, selected, select) {
  const body = element("ranks").tBodies[0];
  while (body.rows.length > state.ranks.length) body.lastElementChild.remove();
  for (const rank of state.ranks) {
    let row = body.rows[rank.rank];
    if (!row) {
      row = rankRow(select, rank.rank);
      body.append(row);
    }
    const name = `${rank.state === "lost" ? "lost" : ""}${selected && selected.rank === rank.rank ? " selected" : ""}`;
    if (row.className !== name) row.className = name;
    row.dataset.rank = rank.rank;
    row.dataset.state = rank.state;
    const cells = row.cells;
    text(cells[0].firstChild, `${rank.role === "server" ? "server " : ""}${rank.rank}`);
    text(cells[1], rank.state);
    cells[1].className = `state-${rank.state}`;
    const isWorker = rank.role === "worker";
    text(cells[2], isWorker ? digits(rank.step) : "");
    text(cells[3], isWorker ? digits(rank.steps_per_second, 3) : "");
    bar(cells[4].firstChild, rank, state);
    text(cells[5], isWorker ? digits(rank.batch) : "");
    text(cells[6], isWorker ? digits(rank.loss, 4) : "");
    text(cells[7], rank.deviation ? digits(rank.deviation.value, 3) : "");
    text(cells[8], bytes(rank.bytes_sent));
    text(cells[9], rank.resident_bytes === null ? "" : bytes(rank.resident_bytes));
    text(cells[10], rank.gpu_bytes === null ? "" : bytes(rank.gpu_bytes));
    text(cells[11], rank.heard === null || state.has_ended ? "" : `${seconds(Math.max(0, state.now - rank.heard))} ago`);
    for (const key of ["compute_seconds", "exposed_seconds", "waiting_seconds", "bytes_sent", "bytes_received", "samples"]) row.dataset[key] = JSON.stringify(rank[key]);
  }
}

// The last steps while the run lasts, the whole run at its end.
function bar(box, rank, state) {
  const whole = { compute: rank.compute_seconds, exposed: rank.exposed_seconds, waiting: rank.waiting_seconds };
  const parts = state.has_ended ? whole : rank.recent;
  const sum = parts.compute + parts.exposed + parts.waiting;
  const names = ["compute", "exposed", "waiting"];
  names.forEach((name, place) => {
    const width = sum > 0 ? `${((100 * parts[name]) / sum).toFixed(1)}%` : "0%";
    if (box.children[place].style.width !== width) box.children[place].style.width = width;
  });
  const label = sum > 0 ? names.map((name) => `${name} ${((100 * parts[name]) / sum).toFixed(0)} %`).join(", ") : "no step yet";
  if (box.title !== label) {
    box.title = label;
    box.setAttribute("aria-label", label);
  }
}

// Positions of a curve's points on the chosen axis.
export function along(points, axis, curves) {
  const place = { t: 0, step: 1, samples: 2, bytes: 2 }[axis];
  const factor = axis === "bytes" ? curves.bytes_per_sample : 1;
  return factor === null || factor === undefined ? [] : points.map((point) => [point[place] * factor, point[3]]);
}

export const AXES = { t: "seconds", step: "steps of each worker", samples: "samples", bytes: "bytes sent (total × share of samples)" };

export function learning(curves, state, axis, isLog) {
  const cursor = axis === "t" && state.is_past ? state.now : undefined;
  const one = (name, key, index) => ({ name, index, points: along(curves[key] || [], axis, curves) });
  const chart = (id, name, series) => lines(element(id), { name, series, xName: AXES[axis], isLog, cursor });
  chart("chart-loss", "Loss", [one("mini-batches", "batch_loss", 0), one("deployed model", "loss", 1)]);
  chart("chart-accuracy", "Accuracy", [one("deployed model", "accuracy", 2), one("worst worker", "worst_accuracy", 3)]);
  const deviations = Object.entries(curves.deviations || {}).map(([rank, points]) => ({ name: `rank ${rank}`, index: Number(rank), points: along(points, axis, curves) }));
  const all = { ...one("all workers", "consensus_distance", 0), isWhole: true };
  chart("chart-consensus", "Distance from the mean", [all, ...deviations]);
}

export function waits(state) {
  const { edges, sentence, is_inferred: isInferred } = state.waits;
  text(element("wait-sentence"), state.has_ended && !state.is_past ? "the run has ended" : sentence);
  text(element("wait-note"), isInferred && edges.length > 0 ? "From the steps that ranks have completed: they did not say for whom they wait." : "");
  const box = element("wait-graph");
  box.replaceChildren();
  box.style.display = edges.length > 0 ? "block" : "none";
  if (edges.length === 0) return;
  const names = [...new Set(edges.flatMap((edge) => [edge.rank, edge.for]))].sort((a, b) => a - b).slice(0, 40);
  const { clientWidth: width, clientHeight: height } = box;
  box.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const [cx, cy, reach] = [width / 2, height / 2, height / 2 - 16];
  const at = (rank) => {
    const angle = (names.indexOf(rank) / names.length) * 2 * Math.PI - Math.PI / 2;
    return [cx + 2 * reach * Math.cos(angle), cy + reach * Math.sin(angle)];
  };
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: "14", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" }, svg("path", { d: "M0 0 L8 4 L0 8 z", fill: colour(4) }));
  box.append(svg("defs", {}, marker));
  for (const edge of edges.filter((one) => names.includes(one.rank) && names.includes(one.for))) {
    const [[x1, y1], [x2, y2]] = [at(edge.rank), at(edge.for)];
    box.append(svg("line", { class: "wait", x1, y1, x2, y2, "marker-end": "url(#arrow)" }));
  }
  for (const rank of names) {
    const [x, y] = at(rank);
    const label = svg("text", { x, y: y + 4 });
    label.textContent = String(rank);
    box.append(svg("g", { class: "node" }, svg("circle", { class: "wait-node", cx: x, cy: y, r: 10 }), label));
  }
}

export function asynchrony(state) {
  const { staleness, gradients_per_message: folded, half_exchanges: half, in_flight_peak: peak } = state.asynchrony;
  const all = Object.entries(staleness || {}).map(([late, count]) => [Number(late), count]).sort((a, b) => a[0] - b[0]);
  const most = 40;
  const shown = all.length <= most ? all : [...all.slice(0, most - 1), [`≥${all[most - 1][0]}`, all.slice(most - 1).reduce((sum, one) => sum + one[1], 0)]];
  bars(element("chart-staleness"), { bars: shown, name: "Gradients by how many updates late they were applied", xName: "updates late" });
  const count = all.reduce((sum, one) => sum + one[1], 0);
  const mean = count > 0 ? all.reduce((sum, one) => sum + one[0] * one[1], 0) / count : null;
  const flying = state.links.reduce((sum, link) => sum + (link.in_flight || 0), 0);
  const flyingBytes = state.links.reduce((sum, link) => sum + (link.in_flight_bytes || 0), 0);
  const rows = [
    ["mean staleness", digits(mean, 4), mean], ["gradients per message", digits(folded, 4), folded],
    ["exchanges broken off", digits(half), half], ["in flight", state.links.length ? `${bytes(flyingBytes)}, ${digits(flying)} messages` : "–", flyingBytes],
  ];
  if (peak && peak.peak_bytes) rows.push(["most in flight", `${bytes(peak.peak_bytes)}, ${digits(peak.peak_messages)} messages`, peak.peak_bytes]);
  pairs(element("asynchrony"), rows);
}

export function membership(state) {
  const living = state.ranks.filter((rank) => rank.lost_at === null).length;
  pairs(element("goodput"), [
    ["living ranks", `${living} of ${state.ranks.length}`, living],
    ["goodput so far", percent(state.progress.goodput), state.progress.goodput],
  ]);
  const { earlier_events: earlier } = state;
  text(element("membership-note"), earlier > 0 ? `${digits(earlier)} earlier events are not listed.` : "");
  const list = element("membership");
  while (list.children.length > state.membership.length) list.lastElementChild.remove();
  state.membership.forEach((event, place) => {
    if (!list.children[place]) list.append(make("li"));
    text(list.children[place], `${seconds(event.t)}: ${event.text}`);
  });
  const box = element("membership-line");
  const width = box.clientWidth || 300;
  box.setAttribute("viewBox", `0 0 ${width} 34`);
  const at = (t) => 8 + (t / Math.max(state.end, 1e-9)) * (width - 16);
  const marks = state.membership.map((event) => {
    // A loss and the view that follows it are close together: a triangle above the line, a stroke across it.
    const shapes = {
      lost: () => svg("path", { class: "event-lost", d: `M ${at(event.t)} 15 l 6 -11 l -12 0 z` }),
      view: () => svg("rect", { class: "event-view", x: at(event.t) - 1.5, y: 10, width: 3, height: 18 }),
    };
    const circle = () => svg("circle", { class: `event-${event.kind}`, cx: at(event.t), cy: 17, r: 4 });
    const mark = (shapes[event.kind] || circle)();
    mark.append(svg("title"));
    mark.firstChild.textContent = event.text;
    return mark;
  });
  box.replaceChildren(svg("line", { class: "track", x1: 8, x2: at(Math.min(state.now, state.end)), y1: 17, y2: 17 }), ...marks);
}

export function advice(state) {
  const a = state.advice;
  text(element("advice-sentence"), a.sentence);
  pairs(element("advice"), [
    ["step, predicted by plan", seconds(a.predicted_step_seconds), a.predicted_step_seconds],
    ["step, measured", seconds(a.measured_step_seconds), a.measured_step_seconds],
    ["samples per second, predicted", digits(a.predicted_samples_per_second, 4), a.predicted_samples_per_second],
    ["samples per second, measured", digits(a.measured_samples_per_second, 4), a.measured_samples_per_second],
  ]);
  text(element("verdict"), a.verdict || "");
}

const ACTIONS = {
  checkpoint: { label: "Checkpoint now" },
  stop: { label: "Save and stop", ask: "Save the state and end this run?" },
  drop: { label: "Drop rank", needsRank: true, ask: "Continue this run without rank" },
  kill: { label: "Kill rank", needsRank: true, ask: "Kill the process of rank" },
};

export function actions(state, selected, perform) {
  const box = element("actions");
  const key = state.actions.join(" ");
  if (box.dataset.key !== key) {
    box.dataset.key = key;
    box.replaceChildren(...state.actions.map((name) => {
      const { label, ask } = ACTIONS[name];
      return make("button", { type: "button", className: ask ? "danger" : "", "data-action": name }, label);
    }));
    if (state.actions.length === 0) box.append("This run takes no orders from here.");
    for (const button of box.querySelectorAll("button")) button.addEventListener("click", () => perform(button.dataset.action));
  }
  for (const button of box.querySelectorAll("button")) {
    const { label, needsRank } = ACTIONS[button.dataset.action];
    const rank = selected && selected.rank;
    button.disabled = Boolean(needsRank) && (rank === undefined || rank === null);
    text(button, needsRank ? (button.disabled ? `${label} (select one)` : `${label} ${rank}`) : label);
  }
}

export const question = (action, rank) => ACTIONS[action].ask && (ACTIONS[action].needsRank ? `${ACTIONS[action].ask} ${rank}?` : ACTIONS[action].ask);

export function configuration(config) {
  const rows = [];
  const walk = (prefix, value) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) {
      for (const [key, inner] of Object.entries(value)) walk(prefix ? `${prefix}.${key}` : key, inner);
    } else rows.push([prefix, typeof value === "string" ? value : JSON.stringify(value), value]);
  };
  walk("", config || {});
  pairs(element("config"), rows);
}

// The links of a rank as buttons, so that edges can be selected without a mouse.
function linkButtons(box, state, rank, select) {
  const pairs = [...state.links.map((link) => [link.from, link.to]), ...state.round.edges].filter((pair) => pair.includes(rank));
  const peers = [...new Set(pairs.map(([from, to]) => (from === rank ? to : from)))].sort((a, b) => a - b);
  const key = `${rank}: ${peers.join(" ")}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(...peers.slice(0, 32).map((peer) => {
    const button = make("button", { type: "button" }, `link with ${peer}`);
    button.addEventListener("click", () => select({ edge: rank < peer ? [rank, peer] : [peer, rank] }));
    return button;
  }));
}

// What a server keeps of the model, where that is known.
function shard(about, rank) {
  const range = about.shards[rank.rank - about.workers];
  return range ? [["shard", `elements ${digits(range[0])} to ${digits(range[1] - 1)}`, range[0]]] : [];
}

export function detail(state, about, selected, history, select) {
  const box = element("detail");
  box.hidden = !selected;
  if (!selected) return;
  if (!box.firstChild) box.append(make("h3"), make("dl", { className: "pairs" }), make("div", { className: "choices" }), make("canvas", { role: "img" }));
  const [title, list, links, canvas] = box.children;
  links.hidden = Boolean(selected.edge);
  if (selected.edge) {
    const [from, to] = selected.edge;
    text(title, `Link between rank ${from} and rank ${to}`);
    const both = state.links.filter((link) => (link.from === from && link.to === to) || (link.from === to && link.to === from));
    pairs(list, both.length === 0 ? [["traffic", "ranks did not count it in this run"]] : both.flatMap((link) => [
      [`${link.from} → ${link.to}`, `${bytes(link.bytes)} in ${digits(link.messages)} messages, ${bytes(Math.round(link.bytes_per_second))}/s`, link.bytes],
      ["last used", `${seconds(link.age)} ago${link.delay === null ? "" : `, the last message took ${seconds(link.delay)}`}`, link.age],
      ["round trip", link.round_trip === null ? "not known: no connection of its own" : `${seconds(link.round_trip)}, ${digits(link.resent)} segments sent again`, link.round_trip],
    ]));
  } else {
    const rank = state.ranks[selected.rank];
    linkButtons(links, state, selected.rank, select);
    text(title, `${rank.role === "server" ? "Server" : "Worker"}, rank ${rank.rank}, on host ${rank.host}`);
    pairs(list, [
      ["state", rank.lost_at === null ? rank.state : `${rank.state} at ${seconds(rank.lost_at)}`], ["steps", digits(rank.step), rank.step], ["samples", digits(rank.samples), rank.samples],
      ["compute", seconds(rank.compute_seconds), rank.compute_seconds], ["exposed", seconds(rank.exposed_seconds), rank.exposed_seconds], ["waiting", seconds(rank.waiting_seconds), rank.waiting_seconds],
      ["sent, received", `${bytes(rank.bytes_sent)}, ${bytes(rank.bytes_received)}`], ["view", digits(rank.view), rank.view],
      ...shard(about, rank),
      ["memory of its process, GPU", `${bytes(rank.resident_bytes)}, ${bytes(rank.gpu_bytes)}`, rank.resident_bytes],
    ]);
  }
  const cursor = state.is_past ? state.now : undefined;
  lines(canvas, { name: "History", xName: "seconds", series: history, isLog: false, cursor });
}
