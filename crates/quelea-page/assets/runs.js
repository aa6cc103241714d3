// All runs of a folder: a list that can be filtered, and curves of several in one chart.

import * as api from "./api.js";
import { lines } from "./chart.js";
import { bytes, digits, make, percent, seconds } from "./format.js";
import { along, AXES } from "./panels.js";

const element = (id) => document.getElementById(id);
const chosen = new Map();
let listed = [];

// `key=value` compares a key of the configuration; any other word may stand anywhere.
export function matches(run, words) {
  return words.every((word) => {
    const [key, value] = word.split(/=(.*)/s);
    if (value !== undefined) {
      const found = Object.entries(run.config).filter(([name]) => name === key || name.endsWith(`.${key}`));
      return found.some(([, given]) => String(given) === value);
    }
    return JSON.stringify(run).toLowerCase().includes(word.toLowerCase());
  });
}

function row(run, place) {
  const box = make("input", { type: "checkbox", checked: chosen.has(run.name), ariaLabel: `overlay ${run.name}` });
  box.addEventListener("change", () => choose(run.name, box.checked, place));
  const link = make("a", { href: `#run=${encodeURIComponent(run.name)}` }, run.name);
  const cells = [box, link, `${run.algorithm || "–"}${run.topology ? ` / ${run.topology}` : ""}`, run.task || "–", digits(run.workers), digits(run.loss),
    percent(run.accuracy), digits(run.samples_per_second, 4), run.has_ended ? seconds(run.clock_seconds) : "not ended", bytes(run.bytes_sent)];
  const line = make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  line.dataset.name = run.name;
  return line;
}

async function choose(name, isChosen, place) {
  if (isChosen) chosen.set(name, { index: place, curves: await api.curves(name) }); else chosen.delete(name);
  overlay();
}

function overlay() {
  const [value, axis] = [element("overlay-value").value, element("overlay-axis").value];
  const series = [...chosen].map(([name, one]) => ({ name, index: one.index, points: along(one.curves[value] || [], axis, one.curves) }));
  lines(element("chart-overlay"), { name: "Overlay", series, xName: AXES[axis], isLog: value.includes("loss") || value.includes("distance") });
}

function filter() {
  const words = element("filter").value.trim().split(/\s+/).filter(Boolean);
  const shown = listed.filter((run) => matches(run, words));
  element("runs").tBodies[0].replaceChildren(...shown.map((run) => row(run, listed.indexOf(run))));
}

export async function show(answer) {
  listed = answer.runs;
  filter();
  if (chosen.size === 0) {
    for (const [place, run] of listed.slice(0, 4).entries()) await choose(run.name, true, place);
    filter();
  }
  overlay();
}

export function start() {
  element("filter").addEventListener("input", filter);
  for (const id of ["overlay-value", "overlay-axis"]) element(id).addEventListener("change", overlay);
}
