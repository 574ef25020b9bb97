"use strict";
// Draws the pictures of instruments as SVG. On the live page a server computes them; on a page of the documentation they
// are in window.undertowPictures, by the indices of the slider values.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const shape = (tag, attributes = {}, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const short = (value) => {
    if (value === null) return "";
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
    return String(Number(value.toPrecision(3)));
  };

  // axes

  const niceStep = (span, count) => {
    const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  };
  const linearTicks = (low, high, count) => {
    const step = niceStep(high - low, count), ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(Number((k * step).toPrecision(12)));
    return ticks;
  };
  const logTicks = (low, high) => {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const decades = [];
    for (let k = first; k <= last; k += Math.max(1, Math.ceil((last - first) / 6))) decades.push(10 ** k);
    if (last - first >= 2) return decades;
    const all = [];
    for (let k = first - 1; k <= last; k++) for (const m of [1, 2, 5]) all.push(m * 10 ** k);
    return all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  const flat = (values) => values.flat().filter((value) => value !== null);

  const rangeOf = (panel, name) => {
    const axis = panel[name];
    let values = panel.series.flatMap((s) => {
      if (s.kind === "cells") return name === "x" ? s.x : s.rows;
      const errors = name === "y" && s.error ? s.y.flatMap((v, i) => v === null ? [] : [v - s.error[i], v + s.error[i]]) : [];
      return [...flat(s[name]), ...errors];
    });
    if (axis.log) values = values.filter((value) => value > 0);
    let low = Math.min(...values), high = Math.max(...values);
    if (!Number.isFinite(low)) [low, high] = axis.log ? [0.1, 1] : [0, 1];
    const margin = axis.log ? 0 : 0.05 * (high - low || Math.abs(high) || 1);
    low -= name === "x" ? 0 : margin;
    high += name === "x" && high > low ? 0 : margin;
    return [axis.low ?? low, axis.high ?? high];
  };
  const scaleOf = (axis, [low, high], from, to) => {
    const f = axis.log ? Math.log10 : (value) => value;
    const a = f(low), b = f(high);
    const scale = (value) => from + (f(axis.log ? Math.max(value, low) : value) - a) / (b - a) * (to - from);
    scale.inverse = (pixel) => { const v = a + (pixel - from) / (to - from) * (b - a); return axis.log ? 10 ** v : v; };
    return scale;
  };

  // series

  const path = (xs, ys, x, y) => {
    let text = "", pen = false;
    xs.forEach((value, i) => {
      if (ys[i] === null || value === null) { pen = false; return; }
      text += `${pen ? "L" : "M"}${x(value).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      pen = true;
    });
    return text;
  };
  const dot = (cx, cy, r, colour, opacity) => shape("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r, fill: colour, "fill-opacity": opacity });

  const KINDS = {
    line: (s, x, y, c) => [shape("path", { d: path(s.x, s.y, x, y), fill: "none", stroke: c, "stroke-width": 2.2 })],
    dashed: (s, x, y, c) => [shape("path", { d: path(s.x, s.y, x, y), fill: "none", stroke: c, "stroke-width": 1.8, "stroke-dasharray": "6 4" })],
    curves: (s, x, y, c) => s.y.map((run) => shape("path", { d: path(s.x, run, x, y), fill: "none", stroke: c, "stroke-width": 1, "stroke-opacity": 0.5 })),
    scatter: (s, x, y, c) => s.x.flatMap((v, i) => v === null ? [] : [dot(x(v), y(s.y[i]), 3.2, c, 0.6)]),
    cloud: (s, x, y, c) => s.y.flatMap((run) => run.flatMap((v, i) => v === null ? [] : [dot(x(s.x[i]), y(v), 1.6, c, 0.3)])),
    dots: (s, x, y, c) => s.x.flatMap((v, i) => {
      if (s.y[i] === null) return [];
      const marks = [dot(x(v), y(s.y[i]), 3.4, c, 1)];
      if (s.error && s.error[i]) marks.push(shape("path", { d: `M${x(v)} ${y(s.y[i] - s.error[i])}V${y(s.y[i] + s.error[i])}`, stroke: c, "stroke-width": 1.4 }));
      return marks;
    }),
    target: (s, x, y, c) => s.x.flatMap((v, i) => [
      shape("circle", { cx: x(v), cy: y(s.y[i]), r: 9, fill: "none", stroke: c, "stroke-width": 2.5 }),
      dot(x(v), y(s.y[i]), 2.5, c, 1),
    ]),
    cells: (s, x, y, c) => {
      const edges = (values, scale) => {
        const at = values.map(scale), middle = at.slice(1).map((p, i) => (p + at[i]) / 2);
        return [2 * at[0] - middle[0], ...middle, 2 * at[at.length - 1] - middle[middle.length - 1]];
      };
      const left = edges(s.x, x), top = edges(s.rows, y);
      return s.y.flatMap((row, j) => row.map((value, i) => shape("rect", {
        x: left[i].toFixed(1), y: Math.min(top[j], top[j + 1]).toFixed(1), width: (left[i + 1] - left[i]).toFixed(1),
        height: Math.abs(top[j + 1] - top[j]).toFixed(1), fill: c, "fill-opacity": 0.04 + 0.71 * (value ?? 0),
      })));
    },
  };
  const swatch = (s) => {
    const picture = shape("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" });
    const across = { x: [1, 25], y: [0, 0] }, x = (v) => v, y = () => 6, colour = `var(--${s.colour})`;
    const sample = {
      cells: () => [0, 0.5, 1].map((v, i) => shape("rect", { x: 1 + 8 * i, y: 1, width: 8, height: 10, fill: colour, "fill-opacity": 0.04 + 0.71 * v })),
      cloud: () => [4, 9, 14, 19, 23].map((v, i) => dot(v, 3 + (i * 5) % 7, 1.6, colour, 0.5)),
      curves: () => KINDS.curves({ x: [1, 25], y: [[0, 0]] }, x, y, colour),
    }[s.kind] ?? (() => KINDS[s.kind](s.kind === "line" || s.kind === "dashed" ? across : { x: [13], y: [0], error: s.error && [0] }, x, y, colour));
    picture.append(...sample());
    return picture;
  };

  // panels

  const drawPanel = (panel, width, pick) => {
    const height = panel.equal ? width - 20 : Math.round(width * 0.68);
    const box = { left: 62, right: width - 10, top: 8, bottom: height - 46 };
    if (panel.equal) box.left = box.right - (box.bottom - box.top);
    const ranges = { x: rangeOf(panel, "x"), y: rangeOf(panel, "y") };
    const x = scaleOf(panel.x, ranges.x, box.left, box.right), y = scaleOf(panel.y, ranges.y, box.bottom, box.top);
    const plot = shape("svg", { class: pick ? "plot pick" : "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.title}: ${panel.y.label} against ${panel.x.label}` });
    const id = `clip${Math.random().toString(36).slice(2)}`;
    const size = { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top };
    const clip = shape("clipPath", { id });
    clip.append(shape("rect", size));
    plot.append(clip);
    for (const value of panel.x.log ? logTicks(...ranges.x) : linearTicks(...ranges.x, width < 400 ? 4 : 6)) {
      plot.append(shape("path", { class: "grid", d: `M${x(value)} ${box.top}V${box.bottom}` }));
      plot.append(shape("text", { class: "tick", x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, short(value)));
    }
    for (const value of panel.y.log ? logTicks(...ranges.y) : linearTicks(...ranges.y, 5)) {
      plot.append(shape("path", { class: "grid", d: `M${box.left} ${y(value)}H${box.right}` }));
      plot.append(shape("text", { class: "tick", x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, short(value)));
    }
    const inside = shape("g", { "clip-path": `url(#${id})` });
    for (const s of panel.series) inside.append(...KINDS[s.kind](s, x, y, `var(--${s.colour})`));
    plot.append(inside, shape("rect", { class: "frame", ...size }));
    plot.append(shape("text", { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" }, panel.x.label));
    const middle = (box.top + box.bottom) / 2;
    plot.append(shape("text", { x: box.left - 48, y: middle, "text-anchor": "middle", transform: `rotate(-90 ${box.left - 48} ${middle})` }, panel.y.label));
    if (pick) {
      const area = shape("rect", { class: "area", ...size, fill: "transparent" });
      area.addEventListener("click", (event) => {
        const frame = plot.getBoundingClientRect(), ratio = width / frame.width;
        pick(x.inverse((event.clientX - frame.left) * ratio), y.inverse((event.clientY - frame.top) * ratio));
      });
      plot.append(area);
    }
    const key = make("ul", { class: "key" }, ...panel.series.map((s) => make("li", {}, swatch(s), s.label)));
    return make("figure", {}, make("figcaption", {}, panel.title), plot, key);
  };

  const drawRows = (rows) => {
    const head = make("tr", {}, ...["", "theory", "simulation", "standard error"].map((name) => make("th", { scope: "col" }, name)));
    const body = rows.map(([label, ...values]) => make("tr", {}, make("th", { scope: "row" }, label), ...values.map((v) => make("td", {}, v === null ? "–" : short(v)))));
    return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  };

  // one instrument

  class Explorer {
    constructor(root, description, source, live) {
      Object.assign(this, { root, description, source, live, controls: new Map(), busy: false, waiting: false });
      this.message = make("p", { class: "message", role: "status" });
      this.panels = make("div", { class: "panels" });
      this.numbers = make("div");
      this.code = make("code");
      this.form = make("form", { "aria-label": "Settings" });
      const wrong = this.addControls();
      const copies = [["Copy the code", () => this.code.textContent], ["Copy a link to this setting", () => location.href]];
      const buttons = copies.map(([name, text]) => {
        const button = make("button", { type: "button" }, name);
        button.addEventListener("click", () => this.copy(text(), name));
        return button;
      });
      const shown = make("details", {}, make("summary", {}, "The Python code of this setting"), make("pre", { tabindex: 0 }, this.code));
      const head = live ? [make("h1", {}, description.title), make("p", { class: "summary" }, description.summary)] : [];
      const result = make("div", { class: "result" }, this.panels, this.numbers, this.message, make("div", { class: "actions" }, ...buttons), shown);
      root.replaceChildren(...head, make("div", { class: "body" }, this.form, result));
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.observer = new ResizeObserver(() => this.picture && this.draw());
      this.observer.observe(this.panels);
      this.change(wrong);
    }

    close() { this.observer.disconnect(); this.closed = true; }

    addControls() {
      const query = new URLSearchParams(location.search), wrong = [], fixed = [];
      for (const slider of this.description.sliders) {
        const given = query.get(slider.name), found = slider.values.findIndex((value) => String(value) === given);
        if (given !== null && found < 0) wrong.push(`${slider.name}=${given}: the slider has the values ${slider.values.join(", ")}.`);
        const index = found < 0 ? slider.values.findIndex((value) => value === slider.default) : found;
        if (slider.values.length === 1) {
          this.controls.set(slider.name, { slider, index: () => 0 });
          fixed.push(`${slider.label}: ${slider.values[0]}`);
          continue;
        }
        const text = typeof slider.values[0] === "string";
        const input = text ? make("select", {}, ...slider.values.map((value, i) => make("option", { value: i }, value)))
          : make("input", { type: "range", min: 0, max: slider.values.length - 1, step: 1 });
        input.name = slider.name;
        input.value = index;
        const output = make("output");
        this.form.append(make("label", {}, make("span", {}, slider.label), ...(text ? [input] : [output, input])));
        const index_ = () => Number(input.value);
        this.controls.set(slider.name, { slider, input, output, index: index_ });
        input.addEventListener("input", () => this.change());
      }
      if (fixed.length) this.form.append(make("p", {}, `Fixed on this page: ${fixed.join("; ")}.`));
      return wrong.join(" ");
    }

    settings() {
      return Object.fromEntries([...this.controls].map(([name, c]) => [name, c.slider.values[c.index()]]));
    }

    change(problem) {
      const settings = this.settings();
      for (const [name, control] of this.controls) {
        if (!control.input) continue;
        control.output.textContent = settings[name];
        control.input.setAttribute("aria-valuetext", settings[name]);
      }
      const query = new URLSearchParams(this.live ? { instrument: this.description.name } : {});
      for (const [name, control] of this.controls) if (control.input) query.set(name, settings[name]);
      if (!problem) history.replaceState(null, "", `?${query}${location.hash}`);
      this.code.textContent = this.description.code.replace(/\$(\$|[a-z_]+)/g, (_, name) => name === "$" ? "$" : settings[name]);
      this.update(problem);
    }

    // one request at a time: if a slider moves while a picture is computed, one more request follows at the end
    async update(problem) {
      if (this.busy) { this.waiting = true; return; }
      this.busy = true;
      const settings = this.settings(), began = performance.now();
      const slow = setTimeout(() => this.say("Computing. A setting is compiled when it is used for the first time ..."), 1000);
      try {
        const picture = await this.source(settings, [...this.controls.values()].map((c) => c.index()));
        if (this.closed) return;
        this.picture = picture;
        this.draw();
        this.panels.classList.remove("stale");
        this.root.dataset.drawn = JSON.stringify(settings);
        this.root.dataset.seconds = (performance.now() - began) / 1000;
        this.say([problem, ...picture.notes].filter(Boolean).join(" "), Boolean(problem));
      } catch (error) {
        this.panels.classList.add("stale");
        this.say(error.message, true);
      } finally {
        clearTimeout(slow);
        this.busy = false;
        if (this.waiting) { this.waiting = false; this.update(); }
      }
    }

    draw() {
      const column = parseFloat(getComputedStyle(this.panels).gridTemplateColumns);
      const width = Math.round(Math.min(560, Math.max(280, column || this.panels.clientWidth)));
      this.panels.replaceChildren(...this.picture.panels.map((panel) => drawPanel(panel, width, panel.pick && ((x, y) => this.pick(panel, x, y)))));
      this.numbers.replaceChildren(drawRows(this.picture.rows));
    }

    pick(panel, ...place) {
      panel.pick.forEach((name, k) => {
        const { slider, input } = this.controls.get(name), axis = [panel.x, panel.y][k];
        if (!input) return;
        const f = axis.log ? Math.log : (value) => value;
        const distances = slider.values.map((value) => Math.abs(f(value) - f(place[k])));
        input.value = distances.indexOf(Math.min(...distances));
      });
      this.change();
    }

    say(text, error = false) {
      this.message.textContent = text;
      this.message.classList.toggle("error", error);
    }

    async copy(text, name) {
      try { await navigator.clipboard.writeText(text); this.say(`${name.replace("Copy", "Copied")}.`); }
      catch { this.say("The browser does not allow copying here: select the text and copy it.", true); }
    }
  }

  // pages

  const GONE = "The server does not answer. Start it again with “undertow explore” and move a slider.";
  const ask = async (address) => {
    let answer;
    try { answer = await fetch(address); } catch { throw new Error(GONE); }
    const value = await answer.json();
    if (!answer.ok || value.error) throw new Error(value.error);
    return value;
  };

  const startLive = async (root) => {
    const list = document.querySelector("nav ul");
    let current, descriptions;
    try { descriptions = await ask("instruments.json"); }
    catch (error) { root.replaceChildren(make("p", { class: "message error", role: "status" }, error.message)); return; }
    const show = (name) => {
      const description = descriptions.find((d) => d.name === name) ?? descriptions[0];
      current?.close();
      for (const link of list.querySelectorAll("a")) {
        if (link.dataset.name === description.name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
      }
      document.title = `${description.title} · undertow explorer`;
      const source = (settings) => ask(`picture.json?${new URLSearchParams({ instrument: description.name, ...settings })}`);
      current = new Explorer(root, description, source, true);
    };
    list.append(...descriptions.map((d) => {
      const link = make("a", { href: `?instrument=${d.name}`, "data-name": d.name }, d.name.replace("-", " "));
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        history.pushState(null, "", link.href);
        show(d.name);
      });
      return make("li", {}, link);
    }));
    const named = () => new URLSearchParams(location.search).get("instrument");
    window.addEventListener("popstate", () => show(named()));
    show(named());
  };

  const start = () => {
    for (const root of document.querySelectorAll(".explorer")) {
      if (root.hasAttribute("data-live")) { startLive(root); continue; }
      const { description, pictures } = window.undertowPictures[root.dataset.instrument];
      new Explorer(root, description, async (_, indices) => pictures[indices.join(",")], false);
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start); else start();
})();
