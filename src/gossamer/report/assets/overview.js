// Overview: multipliers with their intervals, what is left of the models, every figure, and all that was asked.

const overviewView = {
  mount(section) {
    const tasks = report.panels.length;
    // These have no colours of their own: made again in another theme, pictures would load anew and tables be shut.
    this.kept ??= { controls: controlTables(), figures: figureGallery() };
    const parts = [
      make("h1", {}, report.name),
      make("p", { class: "lead" },
        `How many heads and attention edges ${tasks === 1 ? "a task takes" : `${tasks} tasks take`} in a model and in its sparse twin.`),
      doubts(), multiplierTable(), sparseModels(), this.kept.controls, this.kept.figures, settingsTables()];
    section.append(...parts.filter(Boolean));
  },
  update() {},
};

function doubts() {
  const found = new Set(report.panels.flatMap((panel) =>
    Object.values(panel.multipliers).flatMap((row) => row.doubts.map((doubt) => `${panelTitle(panel)}, ${doubt}`))));
  if (!found.size) return null;
  return make("div", { class: "doubt", role: "note" }, make("b", {}, "Reasons to doubt"),
    make("ul", {}, ...[...found].map((text) => make("li", {}, text))));
}

const range = ([low, high], digits) => {
  const text = (end) => (end === null ? "∞" : digits(end));
  return `${text(low)} to ${text(high)}`;
};

function multiplierTable() {
  const rows = report.panels.flatMap((panel) => Object.keys(report.measures).map((measure) => ({ panel, measure, row: panel.multipliers[measure] })));
  const ends = rows.flatMap(({ row }) => [row.multiplier, ...row.multiplier_interval]).filter((end) => end > 0);
  const x = d3.scaleLog([Math.min(0.8, d3.min(ends) ?? 1) * 0.9, Math.max(1.25, d3.max(ends) ?? 1) * 1.1], [6, 194]);
  const body = rows.map(({ panel, measure, row }, number) =>
    make("tr", { class: number % 3 ? "" : "first" },
      make("th", { scope: "row" }, number % 3 ? make("span", { class: "unseen" }, panelTitle(panel)) : panelTitle(panel)),
      make("td", {}, measureName(measure)),
      make("td", { class: "number" }, make("b", {}, size(row.dense_k90)), make("small", {}, range(row.dense_k90_interval, whole))),
      make("td", { class: "number" }, make("b", {}, size(row.sparse_k90)), make("small", {}, range(row.sparse_k90_interval, whole))),
      make("td", { class: "number" }, make("b", {}, row.multiplier === null ? "–" : `${times(row.multiplier)}×`),
        make("small", {}, range(row.multiplier_interval, times))),
      make("td", { class: "plot" }, intervalPlot(row, x, colourOf(panel, "sparse")))));
  return make("div", {},
    make("h2", {}, "Multipliers"),
    make("p", {}, "k90 is the number of units that explain 90% of the effect; the multiplier is that of the dense model over that of the sparse one. Beneath each its 95% interval, a bootstrap over prompts."),
    make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Multipliers" },
      make("table", { id: "multipliers" },
        make("thead", {}, make("tr", {}, ...["Task", "Units", "Dense k90", "Sparse k90", "Multiplier"].map((text, at) =>
          make("th", { scope: "col", class: at > 1 ? "number" : "" }, text)), make("td", { class: "plot" }, intervalAxis(x)))),
        make("tbody", {}, ...body))));
}

const measureName = (measure) => {
  const { units, ranking } = report.measures[measure];
  return `${units}, ${ranking === "sentence" ? "each prompt" : "whole task"}`;
};

function intervalAxis(x) {
  const [low, high] = x.domain();
  const axis = d3.create("svg").attr("class", "ticks").attr("width", 200).attr("height", 14).attr("aria-hidden", true);
  axis.selectAll("text").data([1, 2, 5, 10, 20, 50, 100, 1000].filter((value, at) => value <= high && (high / low < 30 || at % 3 === 0))).join("text")
    .attr("x", x).attr("y", 11).attr("text-anchor", "middle").text((value) => `${whole(value)}×`);
  return axis.node();
}

function intervalPlot(row, x, colour) {
  const plot = d3.create("svg").attr("width", 200).attr("height", 22).attr("aria-hidden", true);
  plot.append("line").attr("x1", x(1)).attr("x2", x(1)).attr("y1", 0).attr("y2", 22).attr("class", "parity");
  if (row.multiplier !== null) {
    const [low, high] = row.multiplier_interval;
    plot.append("line").attr("x1", x(low ?? x.domain()[1])).attr("x2", x(high ?? x.domain()[1])).attr("y1", 11).attr("y2", 11).attr("stroke", colour).attr("stroke-width", 1.5);
    plot.append("circle").attr("cx", x(row.multiplier)).attr("cy", 11).attr("r", 4).attr("fill", colour);
  }
  return plot.node();
}

function sparseModels() {
  if (!report.trainings.length) return null;
  const head = ["Sparse model", "Loss", "Base model", "Bound", "KL", "Same top token", "Edges open", "without first token", "Edges a query and head"];
  return make("div", {},
    make("h2", {}, "Sparse models"),
    make("p", {}, "On held-out text: loss in nats a token, and the share of attention edges that are left."),
    make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Sparse models" },
      make("table", { id: "models" },
        make("thead", {}, make("tr", {}, ...head.map((text, at) => make("th", { scope: "col", class: at ? "number" : "" }, text)))),
        make("tbody", {}, ...report.trainings.map(({ name, tau, evaluation: e }) => {
          const nats = d3.format(".4f");
          const cells = [nats(e.loss), nats(e.base_loss), nats(tau), nats(e.kl), percent(e.top1_agreement), percent(e.edges),
            percent(e.edges_without_first), d3.format(".3~f")(e.edges_per_query ?? NaN)];
          return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => make("td", { class: "number" }, text)));
        })))));
}

// As controls.md has them.
function controlTables() {
  const { tables, missing } = report.controls;
  if (!tables && !missing) return null;
  const cell = (text, scope) => (text && scope ? make("th", { scope }, visible(text)) : make("td", {}, visible(text)));
  const shown = tables?.map(({ title, head, rows }) =>
    make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title },
      make("table", {}, make("caption", {}, title),
        make("thead", {}, make("tr", {}, ...head.map((text) => cell(text, "col")))),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, at) => cell(text, at ? null : "row"))))))));
  return make("div", { id: "controls" }, make("h2", {}, "Controls"), make("p", {}, "What the comparison is held against: other rankings, models and prompts."),
    shown ? make("details", {}, make("summary", {}, `${shown.length} tables`), ...shown) : make("p", { class: "note" }, `Not to be shown: ${missing}.`));
}

function figureGallery() {
  if (!report.figures.length) return null;
  const gallery = make("div", { class: "gallery" });
  for (const figure of report.figures) {
    const picture = make("img", { alt: `${figure.title}: the figure` }); // not lazy: paper would lack those below
    if (figure.kinds.includes("png")) {
      file(`${figure.name}.png`).then((bytes) => { picture.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" })); });
    }
    const links = figure.kinds.map((kind) => saver(figure, kind, async () => [await file(`${figure.name}.${kind}`), kind === "png" ? "image/png" : "image/svg+xml"]));
    const table = figureTable(figure.name);
    if (table) links.push(saver(figure, "csv", async () => [await table(), "text/csv"]));
    gallery.append(make("figure", { class: "card" },
      make("div", { class: "paper" }, picture),
      make("figcaption", {}, make("span", {}, figure.title), make("span", { class: "saves" }, ...links))));
  }
  return make("div", {}, make("h2", {}, "Figures"), gallery);
}

function saver(figure, kind, content) {
  return make("button", {
    type: "button", "data-save": `${figure.name}.${kind}`, "aria-label": `Save “${figure.title}” as ${kind.toUpperCase()}`,
    onclick: async () => { const [bytes, type] = await content(); download(`${figure.name}.${kind}`, bytes, type); },
  }, kind.toUpperCase());
}

// What a figure draws, as a function that gives CSV; null where the page lacks it.
function figureTable(name) {
  if (Object.hasOwn(report.measures, name)) return () => curveTable(report.panels.flatMap((panel) => SIDES.map((side) => [panel, side, panel.curves[name][side]])));
  if (name === "controls") {
    return () => curveTable(report.panels.flatMap((panel) => Object.entries(panel.controls).flatMap(([units, controls]) =>
      [...SIDES.map((side) => [panel, `${side} (${units})`, panel.curves[`${units}_sentence`][side]]),
        ...Object.values(controls).filter((control) => control.k).map((control) => [panel, `${control.label} (${units})`, control])])));
  }
  if (name === "training") {
    return () => csv(["model", "step", "held_out_loss", "edges", "bound", "base_loss", "kept"], report.trainings.flatMap((training) =>
      training.evaluations.map((row) => [training.name, row.step, row.held_out_loss, row.edges, training.tau, training.base_loss, row.step === training.kept_step])));
  }
  const panel = report.panels.find((other) => name === `grid_${other.id}`);
  return panel?.explorer.prompts ? () => patternTable(panel) : null;
}

function curveTable(curves) {
  return csv(["task", "curve", "k", "explained_effect", "low", "high"], curves.flatMap(([panel, name, curve]) =>
    curve.k.map((k, at) => [panel.id, name, k, curve.effect[at], curve.low[at], curve.high[at]])));
}

// The edges that are not 0 of the heads that explain 90%, on the first prompt.
async function patternTable(panel) {
  const rows = [];
  for (const side of SIDES) {
    const one = await explored(panel, side, 0);
    const needed = panel.curves.heads_dataset[side].k90 ?? Infinity;
    panel.heads[side].rank.forEach((rank, place) => {
      if (rank > needed) return;
      const layer = Math.floor(place / one.heads), head = place % one.heads, pattern = one.pattern(layer, head);
      one.tokens.forEach((_, query) => d3.range(query + 1).forEach((key) => {
        const level = levelAt(pattern, query, key);
        if (level) rows.push([side, layer, head, query, key, one.tokens[query], one.tokens[key], Number(weightOf(level).toPrecision(4))]);
      }));
    });
  }
  return csv(["model", "layer", "head", "query", "key", "query_token", "key_token", "attention"], rows);
}

function settingsTables() {
  const list = (title, entries) => make("div", {}, make("h3", {}, title),
    make("dl", {}, ...Object.entries(entries).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, written(value))])));
  const written = (value) => (value === null ? "default" : value === true ? "yes" : value === false ? "no" : String(value));
  const panels = report.panels.map((panel) => {
    const { dense, sparse } = panel.models;
    return list(panelTitle(panel), {
      task: panel.task, "dense model": dense.name, "sparse model": sparse.name,
      architecture: `${dense.type}, ${dense.layers} layers × ${dense.heads_per_layer} heads, ${dense.dtype}`,
      "first token": dense.first_token ?? "none",
      weights: `${dense.weights}, ${sparse.weights}`,
      prompts: `${panel.prompts} of ${panel.tokens.join(" to ")} tokens`, metric: panel.metric,
      "answered right": `dense ${percent(dense.accuracy)}, sparse ${percent(sparse.accuracy)}`,
    });
  });
  return make("div", {}, make("h2", {}, "Settings"),
    make("div", { class: "lists" }, list("Asked", report.settings), list("Versions", report.versions), ...panels));
}
