// Lines and bars on a canvas, drawn when their data or the size of the window change.

const PALETTE = ["--compute", "--exposed", "--good", "--bad", "--waiting"];
const drawn = new Map();

export function colour(index) {
  const name = PALETTE[index % PALETTE.length];
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export const dash = (index) => [[], [6, 3], [2, 2], [8, 3, 2, 3]][Math.floor(index / PALETTE.length) % 4];

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A canvas without data takes no more room than the sentence that says so.
function prepare(canvas, isEmpty) {
  if (canvas.classList.contains("empty") !== isEmpty) canvas.classList.toggle("empty", isEmpty);
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height };
}

export function short(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e12) return `${+(value / 1e12).toPrecision(3)}T`;
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (size < 1e-3) return value.toExponential(0);
  return String(+value.toPrecision(3));
}

// Numbers that differ by less than this share of them are one: what is left is rounding.
const SAME = 1e-9;
const size = (low, high) => Math.max(Math.abs(low), Math.abs(high));

function ticks(low, high, count) {
  const span = Math.max(high - low, SAME * size(low, high)) || 1;
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
  const all = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) all.push(k * step);
  return all;
}

function logTicks(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const k of [1, 2, 5]) all.push(k * 10 ** power);
  }
  const inside = all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 7 ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : inside;
}

// That which all others are part of is drawn in the colour of the text.
const paint = (one) => (one.isWhole ? ink("--ink") : colour(one.index));

// `series`: [{ name, points: [[x, y], …], index, isWhole }]; `cursor`: an x that is marked.
export function lines(canvas, options) {
  drawn.set(canvas, () => lines(canvas, options));
  const { series, xName, isLog, cursor } = options;
  const keep = ([x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!isLog || y > 0);
  const shown = series.map((one) => ({ ...one, points: one.points.filter(keep) })).filter((one) => one.points.length > 0);
  const { pen, width, height } = prepare(canvas, shown.length === 0);
  if (width === 0) return;
  canvas.setAttribute("aria-label", label(options, shown));
  canvas.dataset.points = String(shown.reduce((sum, one) => sum + one.points.length, 0));
  pen.fillStyle = ink("--soft");
  if (shown.length === 0) {
    pen.fillText("nothing was measured yet", 0, height / 2);
    return;
  }
  const all = shown.flatMap((one) => one.points);
  const reach = (place) => all.reduce(([low, high], point) => [Math.min(low, point[place]), Math.max(high, point[place])], [Infinity, -Infinity]);
  const [x0, x1] = reach(0);
  let [y0, y1] = reach(1);
  if (y1 - y0 <= SAME * size(y0, y1)) [y0, y1] = isLog ? [y0 / 2, y1 * 2] : [y0 - Math.abs(y0 || 1) / 2, y1 + Math.abs(y1 || 1) / 2];
  const frame = { left: 44, right: 10, top: 18, bottom: 30 };
  const across = (x) => frame.left + ((x - x0) / (x1 - x0 || 1)) * (width - frame.left - frame.right);
  const share = isLog ? (y) => Math.log(y / y0) / Math.log(y1 / y0) : (y) => (y - y0) / (y1 - y0);
  const up = (y) => height - frame.bottom - share(y) * (height - frame.top - frame.bottom);
  pen.lineWidth = 1;
  pen.strokeStyle = ink("--line");
  pen.textAlign = "right";
  for (const y of isLog ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
    pen.beginPath();
    pen.moveTo(frame.left, up(y));
    pen.lineTo(width - frame.right, up(y));
    pen.stroke();
    pen.fillText(short(y), frame.left - 5, up(y) + 4);
  }
  pen.textAlign = "center";
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) pen.fillText(short(x), across(x), height - frame.bottom + 14);
  pen.fillText(xName, (width + frame.left) / 2, height - 3);
  for (const one of shown) {
    pen.strokeStyle = paint(one);
    pen.fillStyle = paint(one);
    pen.setLineDash(dash(one.index));
    pen.lineWidth = 1.7;
    pen.beginPath();
    one.points.forEach(([x, y], place) => (place ? pen.lineTo(across(x), up(y)) : pen.moveTo(across(x), up(y))));
    pen.stroke();
    pen.setLineDash([]);
    if (one.points.length <= 24) {
      for (const [x, y] of one.points) {
        pen.beginPath();
        pen.arc(across(x), up(y), 2.4, 0, 7);
        pen.fill();
      }
    }
  }
  if (cursor !== undefined && cursor !== null && cursor >= x0 && cursor <= x1) {
    pen.strokeStyle = ink("--ink");
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(across(cursor), frame.top);
    pen.lineTo(across(cursor), height - frame.bottom);
    pen.stroke();
    pen.setLineDash([]);
  }
  legend(pen, shown, frame.left, width);
}

function label({ name, xName }, shown) {
  const parts = shown.map((one) => `${one.name}: last ${short(one.points[one.points.length - 1][1])}`);
  return `${name || "chart"} against ${xName}. ${parts.join(", ") || "empty"}`;
}

function legend(pen, shown, left, width) {
  pen.textAlign = "left";
  let at = left;
  for (const one of shown) {
    const wide = pen.measureText(one.name).width + 26;
    if (at + wide > width) {
      pen.fillStyle = ink("--soft");
      pen.fillText("…", at, 11);
      return;
    }
    pen.strokeStyle = paint(one);
    pen.setLineDash(dash(one.index));
    pen.beginPath();
    pen.moveTo(at, 7);
    pen.lineTo(at + 14, 7);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = ink("--soft");
    pen.fillText(one.name, at + 18, 11);
    at += wide;
  }
}

// `bars`: [[name, number], …]
export function bars(canvas, { bars: all, name, xName }) {
  drawn.set(canvas, () => bars(canvas, { bars: all, name, xName }));
  const { pen, width, height } = prepare(canvas, all.length === 0);
  if (width === 0) return;
  canvas.setAttribute("aria-label", `${name}: ${all.slice(0, 20).map(([x, y]) => `${x}: ${y}`).join(", ") || "empty"}`);
  pen.fillStyle = ink("--soft");
  if (all.length === 0) {
    pen.fillText("no gradient was applied late, or nothing is measured", 0, height / 2);
    return;
  }
  const most = Math.max(...all.map(([, count]) => count));
  const slot = (width - 50) / all.length;
  pen.textAlign = "center";
  all.forEach(([x, count], place) => {
    const tall = (count / most) * (height - 50);
    pen.fillStyle = colour(0);
    pen.fillRect(44 + place * slot + 1, height - 30 - tall, Math.max(1, slot - 2), tall);
    pen.fillStyle = ink("--soft");
    if (slot > 16 || place % Math.ceil(20 / slot) === 0) pen.fillText(String(x), 44 + (place + 0.5) * slot, height - 16);
  });
  pen.fillText(xName, width / 2, height - 3);
  pen.textAlign = "right";
  pen.fillText(short(most), 40, 24);
}

export function redraw() {
  for (const again of [...drawn.values()]) again();
}

new ResizeObserver(redraw).observe(document.documentElement);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
