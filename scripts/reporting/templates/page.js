"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const drawn = new Map(); // from elements to the Vega views in them
const latest = new Map(); // from elements to the specifications that were last asked for

// Colours.

function isDark() {
  return root.dataset.theme === "dark";
}

function color(variable) {
  return getComputedStyle(root).getPropertyValue(variable);
}

function vegaConfig() {
  const [ink, line] = [color("--ink"), color("--line")];
  const text = { labelColor: ink, titleColor: ink, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    font: "system-ui, Helvetica, Arial, sans-serif",
    view: { stroke: null },
    axis: { ...text, domainColor: line, tickColor: line, gridColor: line, labelLimit: 0 },
    legend: text,
    title: { color: ink },
  };
}

// Weights from 0 to 1: from the paper's colour to a strong one, in both themes.
const SCALES = {
  light: ["#ffffff", "#d5e6f3", "#a6cee4", "#77b4d6", "#4d9ac9", "#2c80bd", "#1767ae", "#0f4a92", "#08306b"],
  dark: ["#14181c", "#152c44", "#173f66", "#1c5488", "#2a6bab", "#4785c8", "#6fa3de", "#9fc4ee", "#dbeafa"],
};

// Charts.

async function embed(element, spec) {
  latest.set(element, spec);
  const config = vegaConfig();
  // Vega does not wrap legends, and cuts off those that are too wide.
  const columns = Math.max(1, Math.floor(element.clientWidth / 280));
  Object.assign(config.legend, { columns, labelLimit: element.clientWidth / columns - 60 });
  const options = { actions: false, ast: true, renderer: "canvas", config, tooltip: { theme: root.dataset.theme } };
  const { view } = await vegaEmbed(element, spec, options);
  if (latest.get(element) !== spec) {
    view.finalize();
    return null;
  }
  drawn.get(element)?.finalize();
  drawn.set(element, view);
  return view;
}

// A reviver for JSON.parse. Black, the seventh colour of systems, is invisible on dark paper.
function withVisibleColors(key, value) {
  if (!isDark() || key !== "range" || !Array.isArray(value)) return value;
  return value.map((color) => (color === "#000000" ? "#ffffff" : color));
}

async function draw(element) {
  const spec = JSON.parse(JSON.stringify(data.charts[element.dataset.chart]), withVisibleColors);
  if (!element.classList.contains("fixed")) spec.width = "container";
  const view = await embed(element, spec);
  if (view && element.dataset.chart.startsWith("curve-")) link(view);
}

let steps = null; // the range of steps that all curves show; null: everything

function link(view) {
  if (steps) view.signal("zoom_step", steps).run();
  view.addSignalListener("zoom_step", (_, range) => {
    if (JSON.stringify(range) === JSON.stringify(steps)) return;
    steps = range;
    for (const [element, other] of drawn) {
      if (other !== view && element.dataset.chart?.startsWith("curve-")) other.signal("zoom_step", range).run();
    }
  });
}

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting) {
      observer.unobserve(target);
      draw(target);
    }
  }
}, { rootMargin: "300px" });
document.querySelectorAll("[data-chart]").forEach((element) => observer.observe(element));

// The theme: that of the system, until the reader chooses.

function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(dark));
  for (const element of [...latest.keys()]) if (element.dataset.chart) draw(element);
  if (data.attention?.length) drawAttention();
}

// Search.

const PAGE = 10;
let matches = [];

function search() {
  const query = document.getElementById("query").value.toLocaleLowerCase();
  const { lines, orders } = data.translations;
  const order = orders[document.getElementById("order")?.value]?.order ?? lines.map((_, i) => i);
  matches = order.filter((i) => lines[i].some((text) => text.toLocaleLowerCase().includes(query)));
  document.getElementById("found").textContent = `${matches.length} of ${lines.length} lines`;
  document.getElementById("translations").replaceChildren();
  showMore();
}

function showMore() {
  const list = document.getElementById("translations");
  const { names, lines, orders } = data.translations;
  const shown = list.childElementCount;
  for (const i of matches.slice(shown, shown + PAGE)) {
    const entry = document.createElement("dl");
    entry.className = "translation";
    const scores = orders.map(({ name, values }) => [name, values[i]]);
    const texts = names.map((name, column) => [name, lines[i][column]]);
    for (const [term, value] of [["line", i + 1], ...scores, ...texts]) {
      add(entry, "dt", term);
      add(entry, "dd", value);
    }
    list.append(entry);
  }
  document.getElementById("more").hidden = list.childElementCount >= matches.length;
}

function add(parent, kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  parent.append(element);
  return element;
}

if (data.translations) {
  document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("query").addEventListener("input", search);
  document.getElementById("order")?.addEventListener("change", search);
  document.getElementById("more").addEventListener("click", showMore);
  search();
}

// Attention.

let head = [0, 0]; // layer and head

// The weights of a head as rows of numbers from 0 to 255.
function weightsOf(part, layer, number) {
  part.bytes ??= Uint8Array.from(atob(part.weights), (c) => c.charCodeAt(0));
  const [, heads, rows, columns] = part.shape;
  const begin = (layer * heads + number) * rows * columns;
  return Array.from({ length: rows }, (_, row) => part.bytes.subarray(begin + row * columns, begin + (row + 1) * columns));
}

function drawAttention() {
  const shown = data.attention[document.getElementById("attention-sentence").value];
  document.getElementById("attention-texts").textContent = `${shown.source} → ${shown.translation}`;
  // A recurrent decoder has no weights of self-attention.
  const select = document.getElementById("attention-part");
  for (const option of select.options) option.disabled = !(option.value in shown.parts);
  if (select.selectedOptions[0].disabled) select.value = "cross";
  const part = shown.parts[select.value];
  const [layers, heads] = part.shape;
  head = [Math.min(head[0], layers - 1), Math.min(head[1], heads - 1)];
  const grid = document.getElementById("attention-heads");
  grid.style.gridTemplateColumns = `auto repeat(${heads}, max-content)`;
  grid.replaceChildren(document.createElement("span"));
  for (let number = 1; number <= heads; number++) add(grid, "span", `head ${number}`).className = "head";
  for (let layer = 0; layer < layers; layer++) {
    add(grid, "span", `layer ${layer + 1}`).className = "layer";
    for (let number = 0; number < heads; number++) grid.append(thumbnail(part, layer, number));
  }
  drawHead(part);
}

function thumbnail(part, layer, number) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-label", `layer ${layer + 1}, head ${number + 1}`);
  button.setAttribute("aria-pressed", String(layer === head[0] && number === head[1]));
  const rows = weightsOf(part, layer, number);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d");
  const scale = SCALES[root.dataset.theme];
  rows.forEach((row, y) => row.forEach((weight, x) => {
    context.fillStyle = scale[Math.round((weight / 255) * (scale.length - 1))];
    context.fillRect(x, y, 1, 1);
  }));
  button.append(canvas, part.entropy[layer][number].toFixed(1));
  button.addEventListener("click", () => {
    head = [layer, number];
    for (const other of document.querySelectorAll("#attention-heads button")) other.setAttribute("aria-pressed", String(other === button));
    drawHead(part);
  });
  return button;
}

function drawHead(part) {
  const [layer, number] = head;
  document.getElementById("attention-head").textContent = `Layer ${layer + 1}, head ${number + 1}`;
  const { queries, keys, titles } = part;
  const values = weightsOf(part, layer, number).flatMap((row, y) => Array.from(row, (weight, x) => (
    { row: y, column: x, query: queries[y], key: keys[x], weight: weight / 255 }
  )));
  embed(document.getElementById("attention-map"), mapSpec(values, queries, keys, titles));
  embed(document.getElementById("attention-lines"), lineSpec(values, queries, keys));
}

function labels(names) {
  return { labelExpr: `${JSON.stringify(names)}[datum.value]`, ticks: false, domain: false };
}

function mapSpec(values, queries, keys, titles) {
  return {
    data: { values },
    mark: "rect",
    width: { step: 22 },
    height: { step: 22 },
    encoding: {
      x: { field: "column", type: "ordinal", title: titles[1], axis: { ...labels(keys), orient: "top", labelAngle: -60 } },
      y: { field: "row", type: "ordinal", title: titles[0], axis: labels(queries) },
      color: {
        field: "weight",
        type: "quantitative",
        scale: { domain: [0, 1], range: SCALES[root.dataset.theme], interpolate: "lab" }, // by default, zero is not the paper's colour
        legend: { orient: "bottom", gradientLength: 150, tickCount: 3 },
      },
      tooltip: [{ field: "query" }, { field: "key" }, { field: "weight", format: ".3f" }],
    },
  };
}

// Queries on the left, keys on the right, and a line for each weight that can be seen.
function lineSpec(values, queries, keys) {
  const side = (names, x, align) => ({
    data: { values: names.map((name, row) => ({ name, row })) },
    mark: { type: "text", align, baseline: "middle", fontSize: 12 },
    encoding: { x: { value: x }, y: { field: "row", type: "quantitative" }, text: { field: "name" }, color: { value: color("--ink") } },
  });
  const longest = Math.max(queries.length, keys.length);
  return {
    width: 380,
    height: 18 * longest,
    encoding: { y: { scale: { domain: [longest - 0.5, -0.5], nice: false }, axis: null } },
    layer: [
      {
        data: { values: values.filter(({ weight }) => weight >= 0.05) },
        mark: { type: "rule", strokeWidth: 2 },
        encoding: {
          x: { value: 130 },
          x2: { value: 250 },
          y: { field: "row", type: "quantitative", axis: null },
          y2: { field: "column" },
          opacity: { field: "weight", type: "quantitative", scale: { domain: [0, 1], range: [0.05, 1] }, legend: null },
          color: { value: color("--accent") },
          tooltip: [{ field: "query" }, { field: "key" }, { field: "weight", format: ".3f" }],
        },
      },
      side(queries, 122, "right"),
      side(keys, 258, "left"),
    ],
  };
}

if (data.attention?.length) {
  for (const id of ["attention-sentence", "attention-part"]) document.getElementById(id).addEventListener("change", drawAttention);
}
const preference = matchMedia("(prefers-color-scheme: dark)");
let isChosen = false; // the reader has pressed the button
preference.addEventListener("change", () => {
  if (!isChosen) setTheme(preference.matches);
});
document.getElementById("theme").addEventListener("click", () => {
  isChosen = true;
  setTheme(!isDark());
});
setTheme(preference.matches);
