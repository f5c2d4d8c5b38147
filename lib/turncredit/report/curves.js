// Makes the chart of training curves interactive: task, metric, arms, smoothing, zoom in steps.
// It reads the JSON beside the picture and draws by the same rules as curve_picture.py.
"use strict";
for (const root of document.querySelectorAll(".curves")) {
  const chart = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const svg = root.querySelector("svg"), SPACE = "http://www.w3.org/2000/svg";
  const state = {...chart.first, arms: new Set(chart.first.arms), smooth: true, from: 0, to: null};
  const unpack = text => text.split(" ").map(word => (word === "." ? NaN : +word / 1000));
  let shown = [], view = null;

  function element(name, parent, attributes = {}, text = "") {
    const inside = parent.namespaceURI === SPACE && name !== "div";
    const made = inside ? document.createElementNS(SPACE, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return parent.appendChild(made);
  }

  function smoothed(values) {
    if (!state.smooth) return values;
    let total = 0, norm = 0;
    return values.map(value => {
      if (!Number.isFinite(value)) return value;
      total = chart.weight * total + value;
      norm = chart.weight * norm + 1;
      return total / norm;
    });
  }

  function meanOf(lines) {
    const length = Math.max(...lines.map(line => line.length));
    return Array.from({length}, (_, step) => {
      const known = lines.map(line => line[step]).filter(Number.isFinite);
      return known.length ? known.reduce((a, b) => a + b) / known.length : NaN;
    });
  }

  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= raw * 0.9999);
    const found = [];
    for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++) {
      found.push(+(n * step).toFixed(10));
    }
    return found;
  }

  function read() {
    const runs = chart.tasks[state.task].runs;
    const arms = Object.keys(runs).filter(arm => state.arms.has(arm));
    return arms.map(arm => {
      const lines = Object.entries(runs[arm]).map(([seed, run]) =>
        ({seed, values: smoothed(unpack(run[state.metric]))}));
      return {arm, ...chart.arms[arm], lines, mean: meanOf(lines.map(line => line.values))};
    });
  }

  function layout() {
    const narrow = root.clientWidth < 600;
    const size = narrow ? {width: 480, right: 112} : {width: 900, right: 150};
    const frame = {height: 420, left: 56, top: 12, bottom: 44, ...size};
    const runs = Object.values(chart.tasks[state.task].runs).flatMap(Object.values);
    const last = Math.max(1, ...runs.map(run => run[state.metric].split(" ").length - 1));
    const from = Math.min(state.from, last - 1), to = Math.min(state.to ?? last, last);
    const inside = shown.flatMap(arm => arm.lines.flatMap(line =>
      line.values.slice(from, to + 1).filter(Number.isFinite)));
    const low = inside.length ? Math.min(...inside) : 0;
    const high = inside.length ? Math.max(...inside) : 1;
    const room = (high - low) * 0.04 || 0.5;
    return {...frame, from, to, last, low: low - room, high: high + room};
  }

  const xOf = step => view.left + (step - view.from) / (view.to - view.from)
    * (view.width - view.left - view.right);
  const yOf = value => view.height - view.bottom - (value - view.low) / (view.high - view.low)
    * (view.height - view.top - view.bottom);

  function axes() {
    const {left, width, right, height, bottom, top} = view;
    for (const value of ticks(view.low, view.high, 6)) {
      const y = yOf(value);
      element("line", svg, {class: "grid", x1: left, x2: width - right, y1: y, y2: y});
      element("text", svg, {x: left - 6, y: y + 4, "text-anchor": "end"}, String(value));
    }
    for (const step of ticks(view.from, view.to, 8)) {
      if (!Number.isInteger(step)) continue;
      const at = {x: xOf(step), y: height - bottom + 16, "text-anchor": "middle"};
      element("text", svg, at, String(step));
    }
    const middle = (left + width - right) / 2;
    element("text", svg, {x: middle, y: height - 8, "text-anchor": "middle"}, "training step");
    const place = `translate(14 ${(height - bottom + top) / 2}) rotate(-90)`;
    element("text", svg, {transform: place, "text-anchor": "middle"}, chart.metrics[state.metric]);
  }

  function polyline(values, colour, kind) {
    const points = values.map((value, step) => [step, value])
      .filter(([step, value]) => step >= view.from && step <= view.to && Number.isFinite(value))
      .map(([step, value]) => `${xOf(step).toFixed(1)},${yOf(value).toFixed(1)}`);
    element("polyline", svg, {class: kind, stroke: colour, points: points.join(" ")});
  }

  function labels() {
    const lastIn = mean => mean.slice(view.from, view.to + 1).filter(Number.isFinite).at(-1) ?? 0;
    const ends = shown.map(arm => [arm, yOf(lastIn(arm.mean))]).sort((a, b) => a[1] - b[1]);
    let last = -Infinity;
    for (const end of ends) end[1] = last = Math.max(end[1], last + 15);
    const over = Math.max(0, last - (view.height - view.bottom));
    for (const [arm, y] of ends) {
      const at = {class: "arm", x: view.width - view.right + 8, y: y - over + 4, fill: arm.colour};
      element("text", svg, at, arm.label);
    }
  }

  function draw() {
    shown = read();
    view = layout();
    svg.setAttribute("viewBox", `0 0 ${view.width} ${view.height}`);
    svg.setAttribute("aria-label",
      `${chart.metrics[state.metric]} by training step on ${chart.tasks[state.task].label}`);
    svg.replaceChildren();
    axes();
    for (const arm of shown) for (const line of arm.lines) polyline(line.values, arm.colour, "run");
    for (const arm of shown) polyline(arm.mean, arm.colour, "mean");
    if (shown.length < 20) labels();
    const runs = shown.reduce((count, arm) => count + arm.lines.length, 0);
    say(`${runs} runs of ${shown.length} methods, steps ${view.from} to ${view.to}`);
  }

  function say(text) {
    readout.textContent = text;
  }

  function stepAt(event) {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * view.width;
    const share = (x - view.left) / (view.width - view.left - view.right);
    const step = Math.round(view.from + share * (view.to - view.from));
    return Math.max(view.from, Math.min(view.to, step));
  }

  function zoom(from, to) {
    if (to - from < 2) return;
    [state.from, state.to] = [Math.max(0, from), Math.min(view.last, to)];
    draw();
  }

  function scaled(factor) {
    const middle = (view.from + view.to) / 2, half = (view.to - view.from) / 2 * factor;
    zoom(Math.round(middle - half), Math.round(middle + half));
  }

  function choice(label, options, key) {
    const box = element("label", controls, {}, `${label} `);
    const select = element("select", box, {"data-key": key});
    for (const [value, text] of options) element("option", select, {value}, text);
    select.value = state[key];
    select.onchange = () => {
      state[key] = select.value;
      if (key === "task") [state.from, state.to] = [0, null];
      arms();
      draw();
    };
  }

  function button(text, action) {
    element("button", controls, {type: "button"}, text).onclick = action;
  }

  function arms() {
    methods.replaceChildren(element("legend", methods, {}, "methods (click to toggle)"));
    for (const [arm, runs] of Object.entries(chart.tasks[state.task].runs)) {
      const label = element("label", methods);
      const box = element("input", label, {type: "checkbox", "data-arm": arm});
      element("span", label, {class: "swatch", style: `background:${chart.arms[arm].colour}`});
      label.append(` ${chart.arms[arm].label} (${Object.keys(runs).length})`);
      box.checked = state.arms.has(arm);
      box.onchange = () => {
        box.checked ? state.arms.add(arm) : state.arms.delete(arm);
        draw();
      };
    }
  }

  function toggleAll(on) {
    state.arms = new Set(on ? Object.keys(chart.tasks[state.task].runs) : []);
    arms();
    draw();
  }

  const controls = element("div", root, {class: "controls"});
  const readout = element("p", root, {class: "readout", "aria-live": "polite"});
  const methods = element("fieldset", root);
  root.prepend(controls);
  choice("task", Object.entries(chart.tasks).map(([name, task]) => [name, task.label]), "task");
  choice("curve", Object.entries(chart.metrics), "metric");
  const label = element("label", controls);
  const smooth = element("input", label, {type: "checkbox", "data-key": "smooth"});
  smooth.checked = state.smooth;
  label.append(" smooth");
  smooth.onchange = () => {
    state.smooth = smooth.checked;
    draw();
  };
  button("zoom in", () => scaled(0.5));
  button("zoom out", () => scaled(2));
  button("all steps", () => zoom(0, view.last));
  button("all methods", () => toggleAll(true));
  button("no method", () => toggleAll(false));

  let start = null;
  svg.addEventListener("pointerdown", event => {
    start = stepAt(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", event => {
    const end = stepAt(event), begun = start;
    start = null;
    if (begun !== null) zoom(Math.min(begun, end), Math.max(begun, end));
  });
  svg.addEventListener("dblclick", () => zoom(0, view.last));
  svg.addEventListener("pointermove", event => {
    const step = stepAt(event), box = svg.getBoundingClientRect();
    const y = (event.clientY - box.top) / box.height * view.height;
    if (start !== null) {
      say(`zoom to steps ${Math.min(start, step)} to ${Math.max(start, step)}`);
      return;
    }
    let best = null;
    for (const arm of shown) for (const {seed, values} of arm.lines) {
      const distance = Math.abs(yOf(values[step]) - y);
      if (distance < (best?.distance ?? 24)) best = {distance, arm, seed, value: values[step]};
    }
    if (best) say(`${best.arm.label}, seed ${best.seed}, step ${step}: ${best.value.toFixed(3)}`);
  });
  new ResizeObserver(() => {
    if (view && (root.clientWidth < 600) !== (view.width < 600)) draw();
  }).observe(root);
  arms();
  draw();
}
