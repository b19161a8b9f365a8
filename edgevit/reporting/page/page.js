"use strict";
// What a reader does with the page: choose a setting and an axis, set limits, sort, open a model.

const data = JSON.parse(document.getElementById("data").textContent);
const find = (selector, within = document) => [...within.querySelectorAll(selector)];
const roomy = element => Math.max(280, Math.floor(element.getBoundingClientRect().width || document.querySelector("main").getBoundingClientRect().width)); // what is hidden will be as wide as the page

/** The cheapest entry that keeps to the reader's limits or, without one on accuracy, is as accurate as the base; of those that cost the same as far as runs can tell, the most accurate. */
function choose(panel, axis, limits) {
  const able = panel.entries.filter(e => e.free && e[axis.name] != null && within(e, axis, limits) && (limits.top1 != null || e.reaching));
  const byCost = d3.sort(able, e => e[axis.name]), [cheapest] = byCost;
  return { chosen: d3.greatest(byCost.filter(e => level(e, cheapest, axis)), e => e.merit) ?? null, cheapest };
}

/** Whether the difference of two costs is noise: of two independent estimates it has the root of the sum of their half intervals' squares. */
function level(one, other, axis) {
  if (one === other || !axis.by_ratio) return one[axis.name] === other[axis.name];
  const [low, high] = d3.sort([one, other], e => e.ratio);
  return high.ratio - low.ratio <= Math.hypot(low.ratio_high - low.ratio, high.ratio - high.ratio_low); // false where one is not known
}

/** Why the chosen one is not the cheapest. */
function beside(chosen, cheapest, axis, on) {
  if (chosen === cheapest) return "";
  if (chosen[axis.name] === cheapest[axis.name]) return ` ${cheapest.title} costs the same, and is less accurate${on}.`;
  return ` ${cheapest.title} is less accurate${on}, and what it costs less (${number(cheapest[axis.name])} against ${withUnit(chosen[axis.name], axis)}) is within what runs differ by.`;
}

/** What the chosen one is the cheapest of: without a limit on accuracy, of those as accurate as the base, where there is one. */
function among(panel, asked, limits) {
  return `the cheapest ${asked ? "within these limits" : "by this axis"}${limits.top1 == null && panel.goal != null ? " that is as accurate as the base" : ""}`;
}

/** Why none is chosen that keeps to the limits, and what comes nearest. */
function nothing(panel, axis, limits) {
  const kept = panel.entries.filter(e => !e.baseline && e.top1 != null && within(e, axis, limits)), known = kept.filter(e => e[axis.name] != null);
  if (!kept.length) return "No model keeps to these limits.";
  if (!known.length) return `No model within these limits has a figure for ${axis.title}.`;
  const best = d3.greatest(known.filter(e => e.free), e => e.merit);
  if (!best) return "What speaks against every model within these limits is stated below the table.";
  return `No model within these limits is as accurate as the base${panel.judged_on}; the most accurate is ${best.title} with top-1 ${percent(best.top1)} at ${axis.title} ${withUnit(best[axis.name], axis)}.`;
}

/** Accuracy is compared as it is shown, so that a model keeps to what a reader copies from its row; cost is not, as budgets are hard. */
function within(entry, axis, limits) {
  return (limits.top1 == null || rounded(100 * (entry.top1 ?? -1), 2) >= limits.top1) && (limits.cost == null || (entry[axis.name] ?? Infinity) <= limits.cost);
}

function showPanel(section) {
  const panel = data.panels[+section.dataset.panel], form = section.querySelector("form"), figure = section.querySelector("figure.pareto");
  if (!figure) return;
  const axis = panel.axes.find(a => a.name === form.elements.axis.value);
  const read = name => form.elements[name].value.trim() === "" ? null : +form.elements[name].value;
  const limits = { top1: read("top1"), cost: read("cost") };
  const { chosen, cheapest } = choose(panel, axis, limits);
  section.querySelector(".unit").textContent = axis.unit;
  figure.querySelector(".plot").replaceChildren(pareto(panel, axis, chosen, e => within(e, axis, limits), roomy(figure)));
  for (const row of find("tr[data-entry]", section)) {
    const entry = panel.entries[+row.dataset.entry];
    row.classList.toggle("take", entry === chosen);
    row.classList.toggle("out", !entry.baseline && !within(entry, axis, limits));
  }
  const asked = limits.top1 != null || limits.cost != null, changed = asked || axis.name !== panel.axes[0].name;
  const answer = section.querySelector(".answer"), own = section.querySelector(".own-answer");
  const heading = section.querySelector("h1"), figures = section.querySelector("dl.figures"), another = chosen !== choose(panel, panel.axes[0], {}).chosen;
  section.dataset.heading ??= heading.textContent;
  heading.textContent = !another ? section.dataset.heading : chosen ? `Take ${chosen.title}` : "None to take";
  if (figures) figures.hidden = another; // they are of the model that the page was made with
  answer.hidden = changed;
  own.hidden = !changed;
  own.replaceChildren(...(chosen
    ? [Object.assign(document.createElement("strong"), { textContent: chosen.title }),
      `: top-1 ${percent(chosen.top1)} at ${axis.title} ${withUnit(chosen[axis.name], axis)}, ${among(panel, asked, limits)}.${beside(chosen, cheapest, axis, panel.judged_on)}`]
    : [asked ? nothing(panel, axis, limits) : `${panel.entries.some(e => e.reaching) ? axis.none : panel.none_reaching}.`]));
}

/** Sort the models; the baselines stay on top. What was not measured comes last, whichever way. */
function sort(button) {
  const head = button.closest("th"), table = head.closest("table"), column = head.cellIndex, body = table.tBodies[table.tBodies.length - 1];
  const down = head.getAttribute("aria-sort") === "ascending";
  find("th", table).forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const text = row => row.cells[column].dataset.v ?? "";
  const rows = [...body.rows], known = rows.filter(r => text(r) !== ""), unknown = rows.filter(r => text(r) === "");
  const value = known.some(r => isNaN(text(r))) ? text : row => +text(row); // a model called 10 stands among names
  known.sort((a, b) => (down ? -1 : 1) * d3.ascending(value(a), value(b)));
  body.append(...known, ...unknown);
}

const titles = {
  loss_task: "on labels", loss_teacher: "against teacher", loss_tokens: "of tokens", loss_collapse: "distance to anchors", loss_rank: "tails of attention",
  loss_validation: "on validation images", accuracy_trained: "on validation images", accuracy_pruned: "once cut", accuracy_anchor: "with masks",
};

function drawHistory(series, add, width) {
  const several = new Set(series.map(s => s.stage)).size > 1;
  const named = series.map(s => ({ ...s, label: `${several ? `${s.stage}: ` : ""}${titles[s.name] ?? s.name.replace(/^(loss|accuracy)_/, "").replaceAll("_", " ")}` }));
  const kinds = [["accuracy", "accuracy, %", true], ["loss", "loss", false]];
  for (const [kind, label, share] of kinds) {
    const mine = named.filter(s => s.name.startsWith(kind));
    if (mine.length) add(curves(mine, label, Math.min(width, 560), share));
  }
}

// How each kind of figure is drawn: from a model's data, the figure's number among its kind, and the width there is.
const draw = {
  blocks: (model, _, add, width) => add(blocks(model.blocks, model.embed, Math.min(width, 760))),
  history: (model, _, add, width) => drawHistory(model.history, add, width),
  confusion: (model, _, add, width) => add(confusion(model.confusion, Math.min(width, 620))),
  latency: (model, i, add, width) => add(histogram(model.latency[i], Math.min(width, 620))),
  power: (model, i, add, width) => add(power(model.power[i], Math.min(width, 760))),
  layers: (model, i, add, width) => add(layers(model.layers[i], Math.min(width, 900))),
};

function drawModel(article) {
  const model = data.models[article.id];
  for (const figure of find("figure[data-chart]", article)) {
    const plot = figure.querySelector(".plot");
    plot.replaceChildren();
    draw[figure.dataset.chart](model, +figure.dataset.index, drawn => plot.append(drawn), roomy(figure));
  }
}

/** Put what a model's article has packed into it, and its data beside those of others. */
async function unpack(article) {
  const bytes = Uint8Array.from(atob(article.dataset.packed), c => c.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  const { html, drawn } = JSON.parse(text);
  data.models[article.id] = drawn;
  article.innerHTML = html;
  delete article.dataset.packed;
}

/** Show what the address names: a model, or the overview. */
function follow() {
  const wanted = document.getElementById(location.hash.slice(1)), article = wanted?.closest("article.model");
  if (article?.dataset.packed) return unpack(article).then(follow, () => show(article));
  show(article, wanted);
}

function show(article, wanted = article) {
  find("article.model").forEach(a => a.classList.toggle("open", a === article));
  document.documentElement.classList.toggle("reading", Boolean(article));
  if (article) {
    if (!article.dataset.packed) drawModel(article);
    wanted.scrollIntoView();
    article.querySelector("h1").focus({ preventScroll: true });
    document.title = `${article.querySelector("h1").textContent} - edgevit report`;
  } else {
    document.title = "edgevit report";
    redraw();
  }
}

function open(index) {
  find("section.panel").forEach(s => s.classList.toggle("open", s.dataset.panel === String(index)));
  find("nav.tabs button").forEach(b => { b.setAttribute("aria-selected", b.dataset.panel === String(index)); b.tabIndex = b.dataset.panel === String(index) ? 0 : -1; });
  document.querySelector('nav.tabs button[aria-selected="true"]').scrollIntoView({ block: "nearest", inline: "nearest" });
  redraw();
}

function redraw() {
  const article = document.querySelector("article.model.open");
  if (article) drawModel(article);
  else find("section.panel.open").forEach(showPanel);
}

find("nav.tabs button").forEach((button, i, all) => {
  button.addEventListener("click", () => open(button.dataset.panel));
  button.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); const next = all[(i + step + all.length) % all.length]; next.focus(); open(next.dataset.panel); }
  });
});
find("form.limits").forEach(form => {
  form.addEventListener("input", () => showPanel(form.closest("section")));
  form.elements.axis.addEventListener("change", () => { form.elements.cost.value = ""; showPanel(form.closest("section")); });
  form.addEventListener("submit", event => event.preventDefault());
});
find("th button").forEach(button => button.addEventListener("click", () => sort(button)));
find("figure.pareto").forEach(figure => figure.addEventListener("pointerdown", event => event.stopPropagation(), true));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => {
  find("details.note").forEach(note => { note.open = true; }); // paper cannot be asked
  if (!document.querySelector("article.model.open")) find("section.panel").forEach(showPanel);
});
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });
follow();
