// The page: which run is shown, at which moment, and when it is asked for anew.

import * as api from "./api.js";
import { digits, seconds, text } from "./format.js";
import * as panels from "./panels.js";
import * as runsList from "./runs.js";
import * as topology from "./topology.js";

const LIVE_MS = 500;
const CURVES_MS = 2000;
const TICK_MS = 100;
const WHOLE_SECONDS = 30;

const element = (id) => document.getElementById(id);
const view = { run: null, about: null, state: null, curves: {}, at: null, selected: null, several: false, history: [], isPlaying: false };
let timers = [];

const fail = (error) => {
  element("status").className = "failed";
  const isOver = view.state && view.state.has_ended;
  text(element("status"), isOver ? "the run has ended, and its process too" : `no answer: ${error.message}`);
  if (isOver) stopTimers();
};

function stopTimers() {
  timers.forEach(clearInterval);
  timers = [];
}

// How the selected rank or link was over the whole run.
function askHistory() {
  const { run, selected } = view;
  if (!selected) return;
  const isOf = (what) => run === view.run && view.selected === what;
  const use = (index, name) => ({ points }) => {
    if (!isOf(selected)) return;
    view.history[index] = { name, index, points: points.map(([t, value]) => [t, value]) };
    schedule();
  };
  if (!selected.edge) {
    api.latest("/api/history", { run, rank: selected.rank }, use(0, "steps per second"), fail);
    return;
  }
  const [a, b] = selected.edge;
  [[a, b], [b, a]].forEach(([from, to], index) => {
    api.latest("/api/history", { run, from, to }, use(index, `${from} → ${to}, bytes per second`), fail, index);
  });
}

const select = (what) => {
  const isSame = JSON.stringify(view.selected) === JSON.stringify(what);
  Object.assign(view, { selected: isSame ? null : what, history: [] });
  show();
  askHistory();
};

function status(state) {
  const box = element("status");
  box.className = state.phase === "failed" ? "failed" : "";
  const words = {
    waiting: "waiting for the first step",
    running: state.clock === "real" ? "live" : "running",
    ended: "finished",
    failed: `failed: ${state.failure}`,
  }[state.phase];
  text(box, state.is_past ? `${words}; shown at ${seconds(state.now)}` : words);
}

function show() {
  const { state, about, curves } = view;
  if (!state || !about) return;
  document.body.dataset.phase = state.phase;
  status(state);
  panels.figures(state);
  panels.ranks(state, view.selected, select);
  topology.draw(element("topology"), about, state, view.selected, select);
  const anew = state.round.is_rebuilt ? " made anew over the living" : "";
  const name = about.topology ? `${about.topology.name}${anew}, round of step ${digits(state.round.step)}` : about.servers > 0 ? "workers and servers" : "every worker with every other";
  text(element("topology-note"), name);
  panels.waits(state);
  panels.asynchrony(state);
  panels.membership(state);
  panels.advice(state);
  panels.actions(state, view.selected, perform);
  panels.detail(state, about, view.selected, view.history.filter(Boolean), select);
  panels.learning(curves, state, element("axis").value, element("log-scale").checked);
  const slider = element("slider");
  element("time").hidden = !state.can_seek || state.end <= 0;
  if (view.at === null) slider.value = slider.max;
  text(element("slider-time"), seconds(view.at === null ? state.now : view.at));
  document.body.dataset.shown = String(Number(document.body.dataset.shown || 0) + 1);
}

let isScheduled = false;
function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    show();
  });
}

function ask() {
  const run = view.run;
  api.latest("/api/state", { run, t: view.at }, (state) => {
    if (run !== view.run) return;
    if (view.about && state.run !== view.about.name) {
      // The process has begun another run.
      openRun(null).catch(fail);
      return;
    }
    view.state = state;
    schedule();
    if (state.has_ended && timers.length > 0) {
      stopTimers();
      askCurves();
      askHistory();
    }
  }, fail);
}

function askCurves() {
  const run = view.run;
  api.latest("/api/curves", { run }, (curves) => {
    if (run !== view.run) return;
    view.curves = curves;
    schedule();
  }, fail);
}

async function perform(action) {
  const rank = view.selected ? view.selected.rank : undefined;
  const question = panels.question(action, rank);
  if (question && !window.confirm(question)) return;
  text(element("action-result"), await api.act(view.run, action, rank).catch((error) => error.message));
}

function moveTo(t) {
  view.at = t >= view.state.end ? null : t;
  ask();
}

// Seconds of the run in a second of the clock on the wall.
function pace() {
  const chosen = element("speed").value;
  return chosen === "whole" ? view.state.end / WHOLE_SECONDS : Number(chosen);
}

function setPlaying(isPlaying) {
  view.isPlaying = isPlaying;
  element("play").setAttribute("aria-pressed", String(isPlaying));
  text(element("play"), isPlaying ? "Pause" : "Play");
}

function play() {
  setPlaying(!view.isPlaying);
  if (!view.isPlaying) return;
  if (view.at === null) view.at = 0;
  const slider = element("slider");
  let clock = performance.now();
  const step = () => {
    if (!view.isPlaying || view.at === null || !view.state) return setPlaying(false);
    const passed = (performance.now() - clock) / 1000;
    clock += 1000 * passed;
    moveTo(view.at + passed * pace());
    slider.value = slider.max * (view.at === null ? 1 : view.at / view.state.end);
    setTimeout(step, TICK_MS);
  };
  step();
}

async function openRun(name) {
  stopTimers();
  Object.assign(view, { run: view.several ? name : null, state: null, curves: {}, at: null, selected: null, history: [] });
  element("runs-view").hidden = true;
  element("run-view").hidden = false;
  element("to-runs").hidden = !view.several;
  view.about = await api.description(view.run);
  text(element("title"), `${view.about.name}: ${view.about.algorithm} on ${view.about.task}, ${view.about.workers} workers`);
  document.title = `quelea ${view.about.name}`;
  panels.configuration(view.about.config);
  timers = [setInterval(ask, LIVE_MS), setInterval(askCurves, CURVES_MS), setInterval(askHistory, CURVES_MS)];
  ask();
  askCurves();
}

async function openList() {
  stopTimers();
  const answer = await api.runs();
  element("run-view").hidden = true;
  element("time").hidden = true;
  element("to-runs").hidden = true;
  element("runs-view").hidden = false;
  text(element("title"), `${answer.folder}: ${answer.runs.length} runs`);
  text(element("status"), "select runs to overlay them, or open one");
  await runsList.show(answer);
  document.body.dataset.shown = "1";
}

async function route() {
  const name = new URLSearchParams(location.hash.slice(1)).get("run");
  if (view.several && !name) await openList(); else await openRun(name);
}

async function begin() {
  panels.legends();
  runsList.start();
  element("slider").addEventListener("input", () => moveTo(view.state.end * (element("slider").value / element("slider").max)));
  element("to-now").addEventListener("click", () => moveTo(view.state.end));
  element("play").addEventListener("click", play);
  for (const id of ["axis", "log-scale"]) element(id).addEventListener("change", show);
  window.addEventListener("hashchange", () => route().catch(fail));
  window.addEventListener("resize", schedule);
  const answer = await api.runs();
  view.several = answer.several;
  await route();
}

begin().catch(fail);
