"use strict";
// What each plot looks like. Every function takes plain values and a width in pixels, and returns an element.

const colours = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)", "var(--c7)"];
const shapes = ["circle", "square", "triangle", "cross", "star", "wye", "plus", "times"]; // beside colours, for eyes and printers that see none
const colour = i => colours[i % colours.length];
const shape = i => shapes[(i + Math.floor(i / colours.length)) % shapes.length]; // shifted where colours begin again: no pair comes twice
const plain = { style: { background: "transparent", color: "inherit", fontSize: "12px" } };
/** Rounded as the tables are, where a tie goes to the even digit: Python decides so, and a browser upwards. */
function rounded(value, decimals) {
  const scale = 10 ** Math.max(-decimals, 0), shown = Math.max(decimals, 0), more = 25; // digits, by which a double is no tie or is one
  const exact = (Math.abs(value) / scale).toFixed(shown + more), whole = exact.slice(0, -more).replace(/\.$/, "");
  const tie = exact.slice(-more) === `5${"0".repeat(more - 1)}`, even = "02468".includes(whole.at(-1));
  return Math.sign(value) * scale * (tie && even ? +whole : +(Math.abs(value) / scale).toFixed(shown));
}
const significant = (value, digits) => value && rounded(value, digits - 1 - Math.floor(Math.log10(Math.abs(+value.toExponential(digits - 1)))));
const number = value => value == null ? "-"
  : Math.abs(value) >= 1e9 ? `${d3.format(".4~g")(significant(value / 1e9, 4))} G`
  : Math.abs(value) >= 1e6 ? `${d3.format(".4~g")(significant(value / 1e6, 4))} M`
  : Math.abs(value) >= 1e4 ? `${d3.format(".4~g")(significant(value / 1e3, 4))} k` : d3.format(".3~r")(significant(value, 3));
const percent = value => value == null ? "-" : `${d3.format(".2f")(rounded(100 * value, 2))} %`;
const withUnit = (value, axis) => axis.unit ? `${number(value)} ${axis.unit}` : number(value);

/** The entries that no other one beats in both accuracy and cost, the cheapest first. */
function front(entries, axis) {
  let best = -1;
  return d3.sort(entries, e => e[axis.name], e => -e.top1).filter(e => e.top1 > best && (best = e.top1, true));
}

const FAILS = "✕ fails a gate";

function tooltip(entry, axis) {
  const lines = [entry.title, `top-1 ${percent(entry.top1)} (${percent(entry.low)} to ${percent(entry.high)})`];
  if (entry.p50_ms != null) lines.push(`p50 ${number(entry.p50_ms)} ms${entry.ratio == null ? "" : `, ${number(entry.ratio)} of the base's`}`);
  if (entry.energy_mj != null) lines.push(`${number(entry.energy_mj)} mJ an image`);
  if (entry.macs != null) lines.push(`${number(entry.macs)} MACs, ${number(entry.params)} parameters`);
  if (!["p50_ms", "ratio", "energy_mj", "macs", "params"].includes(axis.name)) lines.push(`${axis.title} ${withUnit(entry[axis.name], axis)}`);
  if (entry.method) lines.push(`method ${entry.method}`);
  if (entry.gates_failed) lines.push(FAILS);
  return lines.join("\n");
}

/** Names with their marks, by what is drawn below it; `fails`: what is crossed out, too. */
function legend(names, drawn, fails = false) {
  const of = range => ({ domain: names, range: names.map((_, i) => range(i)) }), both = document.createElement("div");
  if (names.length) both.append(Plot.legend({ symbol: { ...of(shape), type: "ordinal" }, color: { ...of(colour), type: "categorical" }, fill: "color", stroke: "color" })); // plus and times are strokes alone
  if (fails) both.append(Object.assign(document.createElement("div"), { className: "fails", textContent: FAILS }));
  both.append(drawn);
  return both;
}

/** Accuracy against what it costs: entries with both, the one to take with a ring, those beyond the limits faint. */
function pareto(panel, axis, chosen, within, width) {
  const known = panel.entries.filter(e => e.top1 != null && e[axis.name] != null);
  const costs = known.map(e => e[axis.name]), wide = d3.min(costs) > 0 && d3.max(costs) / d3.min(costs) > 30; // no logarithm has a place for 0
  const best = front(known, axis), kinds = [...new Set(known.filter(e => !e.baseline).map(e => e.method || "model"))];
  const kind = e => Math.max(kinds.indexOf(e.method || "model"), 0), hollow = e => ["plus", "times"].includes(shape(kind(e)));
  const fill = e => e.baseline ? "var(--paper)" : colour(kind(e));
  const stroke = e => e.baseline ? "var(--base)" : fill(e);
  const failing = known.filter(e => !e.baseline && e.gates_failed);
  const faint = e => e.baseline || within(e) ? 1 : 0.25;
  const range = axis.name === "ratio" ? ["ratio_low", "ratio_high"] : axis.name === "p50_ms" ? ["p50_least_ms", "p50_most_ms"] : null;
  const options = {
    ...plain, width, height: Math.round(Math.min(380, Math.max(260, width * 0.42))), marginLeft: 48, marginRight: 30, marginBottom: 42, marginTop: 26,
    x: { label: `${axis.title}${axis.unit ? `, ${axis.unit}` : ""}${wide ? " (logarithmic)" : ""} →`, type: wide ? "log" : "linear", zero: !wide, nice: true, tickFormat: number, grid: true, ticks: width / 90 },
    y: { label: "↑ top-1, %", percent: true, grid: true, nice: true },
    ariaLabel: `accuracy against ${axis.title}`,
  };
  const marks = [
    panel.goal == null ? null : Plot.ruleY([panel.goal], { stroke: "var(--base)", strokeDasharray: "4 4" }),
    Plot.line(best, { x: axis.name, y: "top1", curve: "step-after", stroke: "var(--line)", strokeWidth: 2 }),
    Plot.ruleX(known, { x: axis.name, y1: "low", y2: "high", stroke, strokeOpacity: e => 0.45 * faint(e) }),
    range && Plot.ruleY(known.filter(e => e[range[0]] != null), { x1: range[0], x2: range[1], y: "top1", stroke, strokeOpacity: e => 0.45 * faint(e) }),
    Plot.dot(known.filter(e => e.baseline), { x: axis.name, y: "top1", symbol: "diamond2", r: 6, fill, stroke, strokeWidth: 2, href: e => e.id && `#${e.id}`, ariaLabel: "title" }),
    Plot.dot(known.filter(e => !e.baseline), { x: axis.name, y: "top1", symbol: e => shape(kind(e)), r: 6, fill, stroke: e => hollow(e) ? fill(e) : "var(--paper)", fillOpacity: faint, href: e => e.id && `#${e.id}`, ariaLabel: "title" }),
    Plot.dot(failing, { x: axis.name, y: "top1", symbol: "times", r: 11, stroke: "var(--bad)", strokeWidth: 2.5, strokeOpacity: faint, pointerEvents: "none", ariaLabel: () => FAILS }), // over its own mark
    chosen && chosen[axis.name] != null && Plot.dot([chosen], { x: axis.name, y: "top1", r: 11, stroke: "var(--take)", strokeWidth: 2.5, pointerEvents: "none" }),
  ].filter(Boolean);
  const tip = Plot.tip(known, Plot.pointer({ x: axis.name, y: "top1", title: e => tooltip(e, axis), maxRadius: 30, lineWidth: 30 }));
  const places = labels(Plot.plot({ ...options, marks }), known, best, chosen, axis);
  const text = places.map(p => Plot.text([p.entry], { x: axis.name, y: "top1", text: () => p.text, dx: p.dx, dy: p.dy, textAnchor: p.anchor, fill: "currentColor", stroke: "var(--paper)", strokeWidth: 4, fontWeight: p.entry === chosen ? 700 : 400, fillOpacity: faint(p.entry) }));
  const drawn = Plot.plot({ ...options, marks: [...marks, ...text, tip] });
  // A click near a dot leads to what the tip tells of; Plot would pin the tip instead, in front of the dot.
  drawn.addEventListener("click", () => { if (drawn.value?.id) location.hash = drawn.value.id; });
  return kinds.length < 2 && !failing.length ? drawn : legend(kinds.length < 2 ? [] : kinds, drawn, failing.length > 0);
}

/** Where names fit beside their dots without lying over dots or one another: the chosen one's first, then the front's. */
function labels(drawn, known, best, chosen, axis) {
  const at = e => [drawn.scale("x").apply(e[axis.name]), drawn.scale("y").apply(100 * e.top1)];
  const width = +drawn.getAttribute("width") || 640, boxes = known.map(e => { const [x, y] = at(e); return [x - 7, y - 7, x + 7, y + 7]; });
  const rank = e => e === chosen ? 0 : e.baseline ? 1 : best.includes(e) ? 2 : 3, placed = [];
  for (const entry of d3.sort(known, rank)) {
    const [x, y] = at(entry), text = entry.title.length > 34 ? `${entry.title.slice(0, 15)}…${entry.title.slice(-17)}` : entry.title, wide = 6.6 * text.length;
    for (const [dx, dy, anchor] of [[14, 0, "start"], [0, -16, "middle"], [0, 17, "middle"], [-14, 0, "end"], [12, -14, "start"], [12, 15, "start"]]) {
      const left = x + dx - (anchor === "start" ? 0 : anchor === "end" ? wide : wide / 2), box = [left, y + dy - 7, left + wide, y + dy + 7];
      const taken = boxes.some(b => box[0] < b[2] && b[0] < box[2] && box[1] < b[3] && b[1] < box[3]);
      if (taken || box[0] < 40 || box[2] > width - 2 || box[1] < 14) continue;
      boxes.push(box);
      placed.push({ entry, text, dx, dy, anchor });
      break;
    }
  }
  return placed;
}

/** Each block of the base as an outline, and what is left of it filled: attention upwards head by head, FFN downwards; as wide as the embedding's share. */
function blocks(rows, embed, width) {
  const padding = 0.25, sides = { marginLeft: 62, marginRight: 20 }, band = (width - sides.marginLeft - sides.marginRight) / (rows.length + padding) * (1 - padding);
  const insetRight = embed ? (1 - embed.now / embed.base) * band : 0;
  const attention = d => d ? d.heads * d.qk : 0, most = d3.max(rows, r => attention(r.base)) || 1, widest = d3.max(rows, r => r.base.ffn) || 1;
  const outlines = rows.flatMap(r => [{ block: r.block, y1: 0, y2: attention(r.base) / most }, { block: r.block, y1: 0, y2: -r.base.ffn / widest }]);
  const heads = rows.flatMap(r => r.now ? d3.range(r.now.heads).map(i => ({ block: r.block, y1: i * r.base.qk / most, y2: (i * r.base.qk + r.now.qk) / most })) : []);
  const ffn = rows.filter(r => r.now).map(r => ({ block: r.block, y1: 0, y2: -r.now.ffn / widest }));
  const size = (now, base) => now ? `${now.heads} of ${base.heads} heads\nQK ${now.qk} of ${base.qk}, VO ${now.vo} of ${base.vo}\nFFN ${now.ffn} of ${base.ffn}${now.tokens ? `\npasses on ${now.tokens} tokens` : ""}` : "gone";
  return Plot.plot({
    ...plain, width, height: 230, ...sides, marginBottom: 42, ariaLabel: "what is left of each block",
    x: { type: "band", label: "block of the base", domain: rows.map(r => r.block), padding },
    y: { domain: [-1.05, 1.12], label: null, ticks: [-0.5, 0.5], tickFormat: v => v > 0 ? "heads" : "FFN", tickSize: 0 },
    marks: [
      Plot.barY(outlines, { x: "block", y1: "y1", y2: "y2", fill: "var(--shade)", stroke: "var(--base)" }),
      Plot.barY(heads, { x: "block", y1: "y1", y2: "y2", insetRight, fill: "var(--c0)", stroke: "var(--paper)", strokeWidth: 1 }),
      Plot.barY(ffn, { x: "block", y1: "y1", y2: "y2", insetRight, fill: "var(--c1)" }),
      Plot.ruleY([0], { stroke: "var(--base)" }),
      Plot.text(rows.filter(r => r.now?.tokens), { x: "block", y: 1.06, text: r => `${r.now.tokens} tokens`, fill: "var(--soft)" }),
      Plot.text(rows.filter(r => !r.now), { x: "block", y: 0.5, text: () => "gone", fill: "var(--soft)" }),
      Plot.tip(rows, Plot.pointerX({ x: "block", y: 0, title: r => `block ${r.block}\n${size(r.now, r.base)}${r.now && embed ? `\nembedding ${embed.now} of ${embed.base}` : ""}` })),
    ],
  });
}

const MARKS = 15; // of a curve, at most

/** Curves of one kind of figure over the steps of training. */
function curves(series, label, width, share) {
  const points = series.flatMap(s => s.points.map(([step, value]) => ({ step, value, name: s.label }))), names = series.map(s => s.label);
  const marked = series.flatMap(s => s.points.filter((_, i, all) => i % Math.ceil(all.length / MARKS) === 0).map(([step, value]) => ({ step, value, name: s.label })));
  const log = !share && d3.min(points, p => p.value) > 0 && d3.max(points, p => p.value) / d3.min(points, p => p.value) > 20;
  const drawn = Plot.plot({
    ...plain, width, height: 240, marginLeft: 52, marginBottom: 42, ariaLabel: label,
    x: { label: "step →", tickFormat: number }, y: { label: `↑ ${label}${log ? " (logarithmic)" : ""}`, percent: share, grid: true, type: log ? "log" : "linear", tickFormat: log ? number : d3.format(".5~r"), nice: true }, // 91.667, as a longer one sticks out of a phone
    color: { domain: names, range: names.map((_, i) => colour(i)) }, symbol: { domain: names, range: names.map((_, i) => shape(i)) },
    marks: [
      Plot.line(points, { x: "step", y: "value", stroke: "name", strokeWidth: 1.6 }),
      Plot.dot(marked, { x: "step", y: "value", symbol: "name", fill: "name", stroke: "name", r: 3 }),
      Plot.tip(points, Plot.pointer({ x: "step", y: "value", title: p => `${p.name}\nstep ${p.step}: ${share ? percent(p.value) : number(p.value)}` })),
    ],
  });
  return names.length > 1 ? legend(names, drawn) : drawn;
}

/** Of images of each class (a row), the share that is called each (a column). */
function confusion(seen, width) {
  const names = seen.classes.map(c => c.name), side = Math.min(width, 120 + names.length * (names.length > 15 ? 22 : 56));
  const cells = seen.cells.map(([i, j, images]) => ({ is: names[i], called: names[j], images, of: seen.classes[i].images }));
  const longest = Math.min(d3.max(names, n => n.length) * 6.5 + 12, side * 0.35), half = Math.floor(((longest - 12) / 7 - 1) / 2);
  const fitting = name => name.length * 6.5 + 12 > longest ? `${name.slice(0, half)}…${name.slice(-half)}` : name; // the tip has all of it
  return Plot.plot({
    ...plain, width: side, height: side * 0.72 + longest * 0.5, marginLeft: longest, marginBottom: longest * 0.75 + 12, ariaLabel: "confusion of classes", padding: 0.06,
    x: { label: null, domain: names, tickRotate: -35, tickFormat: fitting }, y: { label: null, domain: names, tickFormat: fitting },
    color: { type: "sqrt", domain: [0, 1], interpolate: d3.interpolateRgb.gamma(1)("#8881", "#0072b2") },
    marks: [
      Plot.cell(d3.cross(names, names), { x: "0", y: "1", fill: "#8881" }),
      Plot.cell(cells, { x: "called", y: "is", fill: c => c.images / c.of }),
      Plot.cell(names, { x: name => name, y: name => name, stroke: "var(--base)" }),
      names.length > 15 ? null : Plot.text(cells, { x: "called", y: "is", text: c => `${c.images}`, fill: c => c.images / c.of > 0.35 ? "#fff" : "currentColor" }),
      Plot.tip(cells, Plot.pointer({ x: "called", y: "is", title: c => `${c.images} of ${c.of} images of ${c.is}\nare called ${c.called}` })),
    ],
  });
}

function histogram(seen, width) {
  const bins = seen.counts.map((n, i) => ({ x1: seen.least_ms + i * seen.bin_ms, x2: seen.least_ms + (i + 1) * seen.bin_ms, n }));
  const marked = Object.entries(seen.percentiles_ms).filter(([name, ms]) => name !== "p95" && ms <= bins[bins.length - 1].x2 * 1.0001).map(([name, ms]) => ({ name, ms }));
  const near = 30 * (bins[bins.length - 1].x2 - bins[0].x1) / (width - 72), names = []; // ms that a name is wide
  for (const { name, ms } of marked) {
    const last = names[names.length - 1];
    if (last && ms - last.ms < near * last.name.split(", ").length) last.name += `, ${name}`; // beside, and not over it
    else names.push({ name, ms });
  }
  return Plot.plot({
    ...plain, width, height: 220, marginLeft: 52, marginBottom: 42, marginTop: 34, ariaLabel: "distribution of latencies",
    x: { label: "latency, ms →" }, y: { label: "↑ inferences", grid: true },
    marks: [
      Plot.rectY(bins, { x1: "x1", x2: "x2", y: "n", fill: "var(--c0)", insetLeft: 0.5, insetRight: 0.5 }),
      Plot.ruleX(marked, { x: "ms", stroke: "var(--take)", strokeDasharray: "3 3" }),
      Plot.text(names, { x: "ms", text: "name", frameAnchor: "top", dy: -14, fill: "var(--take)", fontSize: 11 }),
      Plot.tip(bins, Plot.pointerX({ x1: "x1", x2: "x2", y: "n", title: b => `${d3.format(".5~r")(b.x1)} to ${d3.format(".5~r")(b.x2)} ms\n${b.n} inferences` })),
    ],
  });
}

function power(seen, width) {
  const points = seen.points.map(([s, w]) => ({ s, w }));
  return Plot.plot({
    ...plain, width, height: 212, marginLeft: 46, marginBottom: 42, ariaLabel: "power of the module",
    x: { label: "seconds since the timed window began →" }, y: { label: "↑ W", grid: true, zero: true, nice: true },
    marks: [
      Plot.rectX([{ x1: 0, x2: seen.window_s }], { x1: "x1", x2: "x2", fill: "var(--window)" }),
      seen.idle_w == null ? null : Plot.ruleY([seen.idle_w], { stroke: "var(--base)", strokeDasharray: "4 4" }),
      seen.idle_w == null ? null : Plot.text([seen.idle_w], { y: d => d, text: () => "idle", frameAnchor: "right", dy: -7, fill: "var(--soft)" }),
      Plot.line(points, { x: "s", y: "w", stroke: "var(--c0)" }),
      Plot.tip(points, Plot.pointerX({ x: "s", y: "w", title: p => `${number(p.w)} W at ${number(p.s)} s` })),
    ],
  });
}

/** Where the time goes: a bar for each block, and one for all outside of them. */
function layers(seen, width) {
  const spent = seen.spent.map(s => ({ where: s.place.block == null ? "outside" : `${s.place.block}`, part: s.place.part, ms: s.ms }));
  if (seen.between_ms > 0) spent.push({ where: "outside", part: "between layers", ms: seen.between_ms });
  const parts = [...new Set(spent.map(s => s.part))], where = [...new Set(spent.map(s => s.where))];
  const least = 0.05 * d3.max(d3.rollups(spent, of => d3.sum(of, s => s.ms), s => s.where), ([, ms]) => ms); // of a part that has room for a mark
  const drawn = Plot.plot({
    ...plain, width, height: 252, marginLeft: 52, marginBottom: 42, ariaLabel: "time by layer",
    x: { type: "band", label: "block", domain: where, tickFormat: w => w === "outside" ? "\noutside" : w }, y: { label: "↑ ms", grid: true }, // below the last block's number
    color: { domain: parts, range: parts.map((_, i) => colour(i)) }, symbol: { domain: parts, range: parts.map((_, i) => shape(i)) },
    marks: [
      Plot.barY(spent, { x: "where", y: "ms", fill: "part" }),
      Plot.dot(spent, Plot.stackY({ x: "where", y: "ms", symbol: "part", r: 3, stroke: "var(--paper)", strokeOpacity: s => s.ms < least ? 0 : 1 })),
      Plot.tip(spent, Plot.pointer(Plot.stackY({ x: "where", y: "ms", title: s => `${s.where === "outside" ? "outside the blocks" : `block ${s.where}`}\n${s.part}: ${number(s.ms)} ms` }))),
    ],
  });
  return legend(parts, drawn);
}
