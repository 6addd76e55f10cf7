// Sparsity: which heads have edges left, and what became of a head's pattern.

const sparsityView = {
  mount(section) {
    this.fields = make("div", { class: "controls" });
    this.map = make("div", { class: "map" });
    this.pair = make("div", { class: "beside" });
    this.none = make("div", {});
    section.append(make("h1", {}, "Sparsity"),
      make("p", { class: "lead" }, "The share of each head's attention edges that are left in the sparse model. Choose a head to see its pattern before and after."),
      this.none, this.fields, make("div", { class: "split even" }, this.map, this.pair));
  },

  async update() {
    const panel = currentPanel();
    const there = Boolean(panel.explorer.prompts);
    this.none.replaceChildren(...(there ? [] : [missing(panel)]));
    this.map.hidden = this.pair.hidden = !there;
    const place = state.head ?? bestHead(panel);
    refill(this.fields, taskField(), there ? promptField(panel) : null, there ? headField(panel, place) : null);
    if (!there) return;
    const left = await edgesLeft(panel);
    drawMap(this.map, panel, left, place);
    const room = Math.min(560, Math.max(250, this.pair.clientWidth >= 640 ? this.pair.clientWidth / 2 - 24 : this.pair.clientWidth - 8));
    const pair = await headPair(panel, state.prompt, place, room);
    this.pair.dataset.head = headName(place);
    refill(this.pair, make("h2", {}, headName(place)), pair);
  },
};

function drawMap(node, panel, { shares, on }, chosen) {
  const layers = shares.length, heads = shares[0].length;
  const width = Math.max(260, Math.min(node.clientWidth, 46 * heads + 40)), left = 34, top = 24;
  const cell = Math.min(46, (width - left) / heads);
  const height = Math.min(cell, 34);
  const open = shares.flat().filter((value) => value > 0);
  const x = d3.scaleLog([Math.min(d3.min(open) ?? 0.001, 0.1), d3.max(open) ?? 1], [0.16, 1]).clamp(true);
  const ramp = d3.piecewise(d3.interpolateRgb, isDark() ? RAMPS.dark : RAMPS.light);
  const svg = d3.create("svg").attr("width", width).attr("height", top + layers * height + 6).attr("class", "heat")
    .attr("role", "application").attr("aria-roledescription", "heat map of heads").attr("tabindex", 0).attr("data-key", "map")
    .attr("aria-label", `Edges left, ${layers} layers by ${heads} heads. Arrow keys choose a head.`);
  const axis = (count, at, text, room) => svg.append("g").selectAll("text").data(d3.range(count)).join("text").attr("class", "name").attr("text-anchor", "middle")
    .attr("dominant-baseline", "central").attr("x", (d) => at(d)[0]).attr("y", (d) => at(d)[1]).text((d) => (d % (room < 12 ? 8 : room < 24 ? 4 : 1) ? "" : text + d));
  axis(heads, (head) => [left + (head + 0.5) * cell, 10], "H", cell);
  axis(layers, (layer) => [14, top + (layer + 0.5) * height], "L", height * 2);
  svg.append("g").selectAll("rect").data(d3.cross(d3.range(layers), d3.range(heads), (layer, head) => ({ layer, head, value: shares[layer][head] }))).join("rect")
    .attr("x", (d) => left + d.head * cell + 1.5).attr("y", (d) => top + d.layer * height + 1.5).attr("width", cell - 3).attr("height", height - 3).attr("rx", 2)
    .attr("class", (d) => (d.layer === chosen.layer && d.head === chosen.head ? "cell chosen" : d.value ? "cell" : "cell shut"))
    .attr("data-head", headName).attr("fill", (d) => (d.value ? ramp(x(d.value)) : "none"))
    .on("pointermove", (event, d) => showTip(event, [make("b", {}, headName(d)), d.value ? `${percent(d.value)} of its edges are left` : "shut: no edge is left"]))
    .on("pointerleave", hideTip)
    .on("click", (_, d) => setState({ head: { layer: d.layer, head: d.head } }));
  svg.on("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = { layer: Math.max(0, Math.min(layers - 1, chosen.layer + step[0])), head: Math.max(0, Math.min(heads - 1, chosen.head + step[1])) };
    const value = shares[next.layer][next.head];
    say(`${headName(next)}: ${value ? `${percent(value)} of its edges are left` : "shut"}`);
    setState({ head: next });
  });
  const shut = shares.flat().filter((value) => !value).length;
  refill(node, svg.node(), scaleBar(x, ramp),
    make("p", { class: "detail" }, `${percent(d3.mean(shares.flat()))} of all edges are left, measured on ${on}; ${shut ? `${shut} of ${layers * heads} heads are shut (hollow)` : "no head is shut"}.`));
}

function scaleBar(x, ramp) {
  const bar = make("div", { class: "scale" });
  const shown = canvas(180, 10, { "aria-hidden": true });
  const [low, high] = x.domain();
  d3.range(180).forEach((at) => {
    shown.context.fillStyle = ramp(x(low * (high / low) ** (at / 179)));
    shown.context.fillRect(at, 0, 1, 10);
  });
  bar.append(make("span", {}, percent(low)), shown.node, make("span", {}, percent(high)));
  return bar;
}
