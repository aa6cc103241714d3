// Numbers as people read them, and elements as the panels make them.

export function digits(value, count = 6) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(count - 1);
  return String(Number(value.toPrecision(count)));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= unit) return `${(value / unit).toFixed(2)} ${name}`;
  }
  return `${value} B`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value >= 7200) return `${(value / 3600).toFixed(2)} h`;
  if (value >= 600) return `${(value / 60).toFixed(1)} min`;
  if (value >= 1) return `${value.toFixed(2)} s`;
  if (value >= 1e-3) return `${(value * 1e3).toFixed(2)} ms`;
  return value > 0 ? `${(value * 1e6).toFixed(1)} µs` : "0 s";
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(2)} %`;
}

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in element && key !== "list") element[key] = value; else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Sets text only where it changed: the browser then lays out nothing anew.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// Terms and values; a number also carries all its digits in `data-value`.
export function pairs(list, entries) {
  while (list.children.length > entries.length) list.lastElementChild.remove();
  entries.forEach(([term, shown, value], place) => {
    let group = list.children[place];
    if (!group) {
      group = make("div", {}, make("dt"), make("dd"));
      list.append(group);
    }
    text(group.firstElementChild, term);
    text(group.lastElementChild, shown);
    group.dataset.term = term;
    if (value !== undefined) group.dataset.value = JSON.stringify(value);
  });
}
