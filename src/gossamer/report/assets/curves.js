// Curves: explained effect against units kept, a chart for each task.

const CONTROL_STYLES = {
  tuned: { colour: () => inkOf("ink"), dash: null },
  "random-dense": { side: "dense", dash: "6 4" },
  "random-sparse": { side: "sparse", dash: "6 4" },
  untrained: { colour: () => inkOf("ink-3"), dash: "2 3" },
  "nonsense-dense": { side: "dense", dash: "2 3" },
  "nonsense-sparse": { side: "sparse", dash: "2 3" },
};

const curvesView = {
  mount(section) {
    this.switches = make("div", { class: "controls" });
    this.charts = make("div", { class: "charts" });
    section.append(make("h1", {}, "Curves"),
      make("p", { class: "lead" }, "How much of the effect the k best units explain. Bands: 95% of resampled prompts. Point at a chart, or focus it and use the arrow keys, to read it."),
      this.switches, this.charts);
  },
  update() {
    const measure = `${state.units}_${state.ranking}`;
    const scale = state.scale === "auto" ? (state.units === "edges" ? "log" : "linear") : state.scale;
    const measured = report.panels.some((panel) => Object.keys(panel.controls).length);
    const controlled = measured && state.ranking === "sentence";
    const lines = choice("Axis", "scale", { linear: "linear", log: "log" });
    lines.querySelector(`[value=${scale}]`).checked = true;
    const controls = choice("Controls", "controls", { off: "off", on: "on" }, { disabled: controlled ? [] : ["off", "on"] });
    if (!controlled) controls.querySelector("[value=off]").checked = true; // as drawn; the state keeps what was asked
    refill(this.switches,
      choice("Units", "units", { heads: "heads", edges: "edges" }, { onchange: (units) => setState({ units, scale: "auto" }) }),
      choice("Ranking", "ranking", { sentence: "each prompt", dataset: "whole task" }, { disabled: state.units === "edges" ? ["dataset"] : [] }),
      lines,
      controls,
      state.units === "edges" ? make("p", { class: "hint" }, "Edges are ranked within each prompt: their positions mean something else in another.") : null,
      !measured ? make("p", { class: "hint" }, "This run measured no controls.")
        : !controlled ? make("p", { class: "hint" }, "Controls were measured with rankings of each prompt.") : null);
    this.charts.replaceChildren();
    for (const panel of report.panels) {
      const figure = make("figure", { class: "chart" });
      this.charts.append(figure);
      drawChart(figure, panel, measure, scale, controlled && state.controls === "on");
    }
  },
};

// The lines of a chart: the two models, then the controls; those with nothing to explain have no curve.
function chartLines(panel, measure, controls) {
  const lines = SIDES.map((side) => ({ name: panel.models[side].label, colour: colourOf(panel, side), curve: panel.curves[measure][side], band: true, main: true }));
  if (controls) {
    for (const [name, curve] of Object.entries(panel.controls[measure.split("_")[0]] ?? {})) {
      const style = CONTROL_STYLES[name];
      lines.push({ name: curve.label, colour: style.side ? colourOf(panel, style.side) : style.colour(), dash: style.dash, curve, main: style.dash === null });
    }
  }
  return lines;
}

function drawChart(figure, panel, measure, scale, controls) {
  const lines = chartLines(panel, measure, controls);
  const drawn = lines.filter((line) => line.curve.k);
  const row = panel.multipliers[measure];
  const value = row.multiplier === null ? "90% not reached" : `${times(row.multiplier)}×`;
  figure.append(make("figcaption", {},
    make("h2", {}, panelTitle(panel)),
    make("p", { class: "detail" }, `${value} (${range(row.multiplier_interval, times)}); k90 ${size(row.dense_k90)} dense, ${size(row.sparse_k90)} sparse`),
    make("ul", { class: "legend" }, ...lines.map((line) =>
      make("li", {}, swatch(line.colour, line.dash), line.curve.k ? line.name : `${line.name}: ${line.curve.reason}`)))));

  const width = Math.max(280, figure.clientWidth), height = Math.min(340, Math.max(240, width * 0.52));
  const edge = { top: 14, right: 14, bottom: 42, left: 56 };
  const log = scale === "log";
  const total = d3.max(drawn, (line) => line.curve.k.at(-1));
  const x = (log ? d3.scaleLog() : d3.scaleLinear()).domain([log ? 1 : 0, total]).range([edge.left, width - edge.right]);
  const effects = drawn.filter((line) => line.main).flatMap((line) => line.curve.effect);
  const y = d3.scaleLinear([Math.max(-1, Math.min(controls ? -0.25 : -0.04, d3.min(effects))), Math.min(2, Math.max(controls ? 1.25 : 1.06, d3.max(effects) + 0.04))], [height - edge.bottom, edge.top]);

  const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
    .attr("role", "img").attr("tabindex", 0).attr("data-panel", panel.id).attr("data-measure", measure).attr("data-scale", scale)
    .attr("aria-label", `${panelTitle(panel)}: explained effect against ${state.units} kept, dense and sparse. Arrow keys read the values.`);
  const inner = `clip-${report.panels.indexOf(panel)}`;
  svg.append("clipPath").attr("id", inner).append("rect").attr("x", edge.left - 6).attr("y", edge.top - 4).attr("width", width - edge.left - edge.right + 12).attr("height", height - edge.top - edge.bottom + 8);
  svg.append("g").attr("class", "axis").attr("transform", `translate(0 ${height - edge.bottom})`)
    .call(log ? d3.axisBottom(x).ticks(5, "~s").tickSizeOuter(0) : d3.axisBottom(x).ticks(6, "~s").tickSizeOuter(0))
    .call((axis) => axis.selectAll(".tick").filter(function () { return log && !d3.select(this).select("text").text(); }).remove());
  svg.append("g").attr("class", "axis rules").attr("transform", `translate(${edge.left} 0)`)
    .call(d3.axisLeft(y).tickValues([0, 0.25, 0.5, 0.75, 1]).tickFormat(d3.format("~g")).tickSize(-(width - edge.left - edge.right)).tickPadding(8));
  svg.append("text").attr("class", "name").attr("x", (edge.left + width - edge.right) / 2).attr("y", height - 6).attr("text-anchor", "middle").text(`${state.units} kept`);
  svg.append("text").attr("class", "name").attr("transform", `translate(12 ${(edge.top + height - edge.bottom) / 2}) rotate(-90)`).attr("text-anchor", "middle").text("explained effect");
  svg.append("line").attr("class", "ninety").attr("x1", edge.left).attr("x2", width - edge.right).attr("y1", y(0.9)).attr("y2", y(0.9));
  svg.append("text").attr("class", "name").attr("x", width - edge.right).attr("y", y(0.9) + 13).attr("text-anchor", "end").text("0.9");

  const plot = svg.append("g").attr("clip-path", `url(#${inner})`);
  for (const line of [...drawn].reverse()) {
    const points = line.curve.k.map((k, at) => ({ k, effect: line.curve.effect[at], low: line.curve.low[at], high: line.curve.high[at] }))
      .filter((point) => point.effect !== null && (!log || point.k > 0));
    if (line.band) plot.append("path").datum(points).attr("fill", line.colour).attr("opacity", 0.16)
      .attr("d", d3.area().defined((p) => p.low !== null).x((p) => x(p.k)).y0((p) => y(p.low)).y1((p) => y(p.high)));
    plot.append("path").datum(points).attr("class", "curve").attr("data-curve", line.name).attr("fill", "none").attr("stroke", line.colour)
      .attr("stroke-width", line.band ? 2 : 1.25).attr("stroke-dasharray", line.dash ?? null).attr("stroke-linejoin", "round")
      .attr("d", d3.line().x((p) => x(p.k)).y((p) => y(p.effect)));
    if (line.band && line.curve.k90 !== null && (!log || line.curve.k90 > 0)) {
      plot.append("circle").attr("cx", x(line.curve.k90)).attr("cy", y(0.9)).attr("r", 4).attr("fill", inkOf("page")).attr("stroke", line.colour).attr("stroke-width", 2);
    }
  }
  readOut(svg, { drawn, x, y, edge, height, log, panel });
  figure.append(svg.node());
}

// The value of every line at the k under the pointer, or at the one that the arrow keys reach.
function readOut(svg, { drawn, x, y, edge, height, log, panel }) {
  const sizes = drawn[0].curve.k.filter((k) => !log || k > 0);
  const rule = svg.append("line").attr("class", "rule").attr("y1", edge.top).attr("y2", height - edge.bottom).attr("visibility", "hidden");
  const dots = svg.append("g");
  let at = -1;
  const show = (place, event) => {
    at = Math.max(0, Math.min(sizes.length - 1, place));
    const k = sizes[at];
    const read = drawn.map((line) => {
      const row = line.curve.k.indexOf(k); // controls are measured at fewer sizes
      return row < 0 ? { ...line, effect: null, measured: false } : { ...line, effect: line.curve.effect[row], low: line.curve.low[row], high: line.curve.high[row] };
    }).filter((line) => line.measured === false || line.effect !== null);
    rule.attr("visibility", "visible").attr("x1", x(k)).attr("x2", x(k));
    dots.selectAll("circle").data(read.filter((line) => line.effect !== null && line.effect >= y.domain()[0] && line.effect <= y.domain()[1])).join("circle")
      .attr("r", 3.5).attr("cx", x(k)).attr("cy", (line) => y(line.effect)).attr("fill", (line) => line.colour);
    const rows = read.map((line) => (line.measured === false ? `${line.name}: not measured at this k` : `${line.name}: ${share(line.effect)} (${share(line.low)} to ${share(line.high)})`));
    const box = svg.node().getBoundingClientRect();
    const scale = box.width / svg.attr("width");
    showTip(event ?? { clientX: box.left + x(k) * scale, clientY: box.top + edge.top + 20 }, [
      make("b", {}, `k = ${whole(k)} ${state.units}`),
      ...read.map((line, number) => make("div", {}, swatch(line.colour, line.dash), rows[number])),
    ]);
    if (!event) say(`${panelTitle(panel)}, ${whole(k)} ${state.units}. ${rows.join(". ")}`);
  };
  const hide = () => { rule.attr("visibility", "hidden"); dots.selectAll("circle").remove(); hideTip(); };
  svg.on("pointermove pointerdown", (event) => {
    const k = x.invert(d3.pointer(event, svg.node())[0]);
    const near = log ? d3.least(sizes.map((value, place) => [Math.abs(Math.log(value / Math.max(k, 1e-9))), place]))[1] : d3.bisectCenter(sizes, k);
    show(near, event);
  }).on("pointerleave", (event) => event.pointerType !== "touch" && hide()).on("blur", hide).on("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return event.key === "Escape" ? hide() : undefined;
    event.preventDefault();
    return show(at < 0 ? 0 : at + steps[event.key]);
  });
}
