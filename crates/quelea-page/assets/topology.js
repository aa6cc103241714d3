// The topology of this round: ranks on a circle, those of a host side by side, servers in the middle.

import { svg } from "./format.js";

const LABELS_MAX = 64;
let laid = { key: "", places: [], nodes: [], edges: new Map() };

function places(about, width, height) {
  const centre = [width / 2, height / 2];
  const radius = Math.min(width, height) / 2 - 34;
  const workers = about.workers;
  const hosts = about.hosts.slice(0, workers);
  const count = new Set(hosts).size;
  const gap = count > 1 && count < workers ? 0.6 : 0;
  const turns = workers + gap * count;
  const all = [];
  let at = 0;
  for (let rank = 0; rank < workers; rank += 1) {
    if (rank > 0 && hosts[rank] !== hosts[rank - 1]) at += gap;
    const angle = ((at + 0.5) / turns) * 2 * Math.PI - Math.PI / 2;
    all.push({ x: centre[0] + radius * Math.cos(angle), y: centre[1] + radius * Math.sin(angle), angle });
    at += 1;
  }
  for (let server = 0; server < about.servers; server += 1) {
    const offset = (server - (about.servers - 1) / 2) * Math.min(46, (1.4 * radius) / about.servers);
    all.push({ x: centre[0] + offset, y: centre[1], isServer: true });
  }
  return { all, centre, radius };
}

function arcs(about, { all, centre, radius }, layer) {
  const workers = about.workers;
  const hosts = about.hosts.slice(0, workers);
  if (new Set(hosts).size >= workers || workers === 0) return;
  let first = 0;
  for (let rank = 1; rank <= workers; rank += 1) {
    if (rank < workers && hosts[rank] === hosts[first]) continue;
    const [from, to] = [all[first], all[rank - 1]];
    const large = to.angle - from.angle > Math.PI ? 1 : 0;
    if (rank - 1 > first) {
      layer.append(svg("path", { class: "host", d: `M ${from.x} ${from.y} A ${radius} ${radius} 0 ${large} 1 ${to.x} ${to.y}` }));
    }
    const middle = (from.angle + to.angle) / 2;
    const label = svg("text", { class: "host-label", x: centre[0] + (radius + 24) * Math.cos(middle), y: centre[1] + (radius + 24) * Math.sin(middle) + 4 });
    label.textContent = `host ${hosts[first]}`;
    layer.append(label);
    first = rank;
  }
}

function node(rank, at, size, isLabelled, select) {
  const shape = at.isServer
    ? svg("rect", { x: at.x - size, y: at.y - size, width: 2 * size, height: 2 * size, rx: 2 })
    : svg("circle", { cx: at.x, cy: at.y, r: size });
  const reach = size * 0.55;
  const cross = svg("path", { class: "cross", d: `M ${at.x - reach} ${at.y - reach} L ${at.x + reach} ${at.y + reach} M ${at.x - reach} ${at.y + reach} L ${at.x + reach} ${at.y - reach}` });
  const group = svg("g", { class: "node", tabindex: "0", role: "button", "data-rank": rank }, shape, cross);
  if (isLabelled) {
    const label = svg("text", { x: at.x, y: at.y - size - 3 });
    label.textContent = String(rank);
    group.append(label);
  }
  const choose = () => select({ rank });
  group.addEventListener("click", choose);
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose();
    }
  });
  return group;
}

function layOut(element, about, select) {
  const { clientWidth: width, clientHeight: height } = element;
  const key = `${about.name} ${about.workers} ${about.servers} ${width} ${height}`;
  if (laid.key === key) return;
  element.replaceChildren();
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const spots = places(about, width, height);
  const back = svg("g");
  arcs(about, spots, back);
  const between = svg("g");
  const front = svg("g");
  const ranks = spots.all.length;
  const size = ranks > 128 ? 3 : ranks > 48 ? 5 : 9;
  const nodes = spots.all.map((at, rank) => node(rank, at, size, ranks <= LABELS_MAX, select));
  front.append(...nodes);
  element.append(back, between, front);
  laid = { key, places: spots.all, nodes, between, edges: new Map() };
}

const WORST = ["stale", "lossy", "slow", "busy", "good", ""];
// A round trip of this many times the median is long, from this many seconds on.
const LONG_TRIP = 5;
const LONG_SECONDS = 0.001;

function medianTrip(state) {
  const trips = state.links.map((link) => link.round_trip).filter((trip) => trip !== null).sort((a, b) => a - b);
  return trips.length > 0 ? trips[Math.floor((trips.length - 1) / 2)] : null;
}

// How one direction is, by what ranks counted.
function health(link, state, about, median) {
  const pace = Math.max(2, 20 * (state.advice.measured_step_seconds || 0));
  if (!state.has_ended && !state.is_past && link.age > pace) return "stale";
  if (link.resent_recently > 0) return "lossy";
  if (link.round_trip > Math.max(LONG_SECONDS, LONG_TRIP * median)) return "slow";
  const most = about.bandwidth_bytes_per_second;
  return most && link.bytes_per_second > 0.7 * most ? "busy" : "good";
}

// The worse of both directions; stale only where nothing passes either way.
function healthOf(both, state, about, median) {
  const found = both.filter(Boolean).map((link) => health(link, state, about, median));
  const moving = found.filter((name) => name !== "stale");
  const judged = moving.length > 0 ? moving : found;
  return WORST.find((name) => judged.includes(name)) || "";
}

export function draw(element, about, state, selected, select) {
  layOut(element, about, select);
  for (const rank of state.ranks) {
    const node = laid.nodes[rank.rank];
    if (!node) continue;
    const isSelected = selected && selected.rank === rank.rank;
    const name = `node ${rank.state}${isSelected ? " selected" : ""}`;
    if (node.getAttribute("class") !== name) node.setAttribute("class", name);
    node.setAttribute("aria-label", `${rank.role} ${rank.rank}, ${rank.state}, step ${rank.step}`);
  }
  const median = medianTrip(state);
  const links = new Map(state.links.map((link) => [`${link.from}-${link.to}`, link]));
  const listed = state.round.edges.length > 0 ? state.round.edges : state.links.map((link) => [link.from, link.to]);
  const wanted = new Map();
  for (const [from, to] of listed) {
    const [low, high] = from < to ? [from, to] : [to, from];
    wanted.set(`${low}-${high}`, [low, high]);
  }
  for (const [key, group] of laid.edges) {
    if (!wanted.has(key)) {
      group.remove();
      laid.edges.delete(key);
    }
  }
  for (const [key, [from, to]] of wanted) {
    const [a, b] = [laid.places[from], laid.places[to]];
    if (!a || !b) continue;
    let group = laid.edges.get(key);
    if (!group) {
      const ends = { x1: a.x, y1: a.y, x2: b.x, y2: b.y };
      group = svg("g", { "data-edge": key }, svg("line", { class: "edge", ...ends }), svg("line", { class: "hit", ...ends }));
      group.addEventListener("click", () => select({ edge: [from, to] }));
      laid.between.append(group);
      laid.edges.set(key, group);
    }
    const both = [links.get(`${from}-${to}`), links.get(`${to}-${from}`)];
    const isSelected = selected && selected.edge && selected.edge[0] === from && selected.edge[1] === to;
    const name = `edge ${healthOf(both, state, about, median)}${isSelected ? " selected" : ""}`;
    if (group.firstChild.getAttribute("class") !== name) group.firstChild.setAttribute("class", name);
  }
}
