// The drawn circuit: the prompt's tokens in the middle, the dense model's kept edges on the left, the sparse one's on
// the right; as arcs from token to token, or as a graph through the layers.

const HEAD_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8f6ad0", "#a07a2c"];
const ROW = { least: 13, most: 34 };

// One colour a layer, from the first to the last; or one for each of the most important heads.
function edgeColours(panel, both) {
  const { layers } = both[0];
  if (state.colour === "layer") {
    const ramp = isDark() ? (t) => d3.interpolatePlasma(0.28 + 0.67 * t) : (t) => d3.interpolatePlasma(0.02 + 0.8 * t);
    const colours = d3.range(layers).map((layer) => ramp(layers === 1 ? 0.3 : layer / (layers - 1)));
    return { of: (one, at) => colours[one.layer[at]], legend: colours.map((colour, layer) => ({ colour, name: `layer ${layer}` })) };
  }
  const counts = d3.rollups(both.flatMap((one) => one.kept.map((at) => [one.layer[at] * one.heads + one.head[at], 1 / one.kept.length])),
    (pairs) => d3.sum(pairs, (pair) => pair[1]), (pair) => pair[0]);
  const first = counts.sort((a, b) => d3.descending(a[1], b[1])).slice(0, HEAD_COLOURS.length).map(([place]) => place);
  const colours = new Map(first.map((place, number) => [place, tone(HEAD_COLOURS[number])]));
  const other = inkOf("ink-3");
  const legend = [...colours].map(([place, colour]) => ({ colour, name: headName({ layer: Math.floor(place / both[0].heads), head: place % both[0].heads }) }));
  if (counts.length > first.length) legend.push({ colour: other, name: "other heads" });
  return { of: (one, at) => colours.get(one.layer[at] * one.heads + one.head[at]) ?? other, legend };
}

// Where everything is, for a drawing of some width.
function geometry(tokens, width, layers) {
  const n = tokens.length;
  const row = Math.max(ROW.least, Math.min(ROW.most, 640 / n));
  const text = Math.min(14, row - 1.5);
  const pen = canvas(1, 1).context;
  pen.font = `${text}px ${FONT}`;
  const middle = Math.min(width * 0.3, 150, d3.max(tokens, (token) => pen.measureText(label(token)).width) + 22);
  const top = 34;
  const panel = (width - middle) / 2;
  const y = (token) => top + (token + 0.5) * row;
  const gap = 10;
  const columns = {
    dense: d3.scaleLinear([0, layers], [14, panel - gap]),
    sparse: d3.scaleLinear([0, layers], [panel + middle + gap, width - 14]),
  };
  return { n, row, text, middle, top, panel, y, gap, columns, width, height: top + n * row + 12, layers };
}

// An edge as the four points of a Bézier curve, from the key that is read to the query that reads it.
function bezier(place, one, at) {
  const query = one.query[at], key = one.from[at], layer = one.layer[at];
  const y0 = place.y(key), y1 = place.y(query);
  if (state.shape === "layers") {
    const x0 = place.columns[one.side](layer), x1 = place.columns[one.side](layer + 1), bend = (x1 - x0) * 0.5;
    return [x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1];
  }
  const way = one.side === "dense" ? -1 : 1;
  const x = one.side === "dense" ? place.panel - 4 : place.panel + place.middle + 4;
  const fan = (layer * one.heads + one.head[at]) / (one.layers * one.heads); // edges between the same tokens lie apart
  const spare = Math.min(80, place.panel * 0.2);
  const reach = (place.panel - spare - 18) * (0.1 + 0.9 * Math.sqrt((query - key) / Math.max(1, place.n - 1))) + spare * fan;
  const spread = query === key ? place.row * 0.3 : 0;
  const out = x + (way * reach * 4) / 3;
  return [x, y0 - spread, out, y0 - spread, out, y1 + spread, x, y1 + spread];
}

const along = ([x0, y0, x1, y1, x2, y2, x3, y3], t) => {
  const s = 1 - t, a = s * s * s, b = 3 * s * s * t, c = 3 * s * t * t, d = t * t * t;
  return [a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3];
};

function strokeEdge(context, points, { colour, width, alpha, negative, head }) {
  const [x0, y0, x1, y1, x2, y2, x3, y3] = points;
  context.strokeStyle = context.fillStyle = colour;
  context.globalAlpha = alpha;
  context.lineWidth = width;
  context.setLineDash(negative ? [3 + 2 * width, 2 + width] : []);
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x1, y1, x2, y2, x3, y3);
  context.stroke();
  if (head) { // a point where the query reads
    const from = x2 < x3 ? -1 : 1;
    context.beginPath();
    context.moveTo(x3, y3);
    context.lineTo(x3 + from * (4 + width), y3 - 2 - width * 0.7);
    context.lineTo(x3 + from * (4 + width), y3 + 2 + width * 0.7);
    context.fill();
  }
}

// The drawing. `both` are the two models' explored prompts, each with `kept`, the numbers of the edges to draw.
class CircuitDrawing {
  constructor(holder, { onhead }) {
    this.holder = holder;
    this.base = make("canvas", { role: "img" });
    this.over = make("canvas", { class: "over", "aria-hidden": true });
    holder.append(this.base, this.over);
    holder.addEventListener("pointermove", (event) => this.point(event));
    holder.addEventListener("pointerdown", (event) => this.point(event));
    holder.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.highlight(null)); // a finger leaves at once
    holder.addEventListener("click", (event) => {
      const found = this.edges && this.find(event);
      if (found) onhead({ layer: found.one.layer[found.at], head: found.one.head[found.at] });
    });
  }

  draw(panel, both, colours) {
    Object.assign(this, { panel, both, colours });
    const tokens = both[0].tokens;
    const width = this.holder.clientWidth;
    this.place = geometry(tokens, width, both[0].layers);
    const { place } = this;
    const context = sized(this.base, width, place.height);
    this.pen = sized(this.over, width, place.height);
    this.holder.style.height = `${place.height}px`;
    this.frame(context, tokens);
    this.edges = [];
    for (const one of both) {
      const shown = one.kept.length;
      const most = d3.max(one.kept, (at) => Math.abs(one.scores[at]));
      const faint = Math.max(0.16, Math.min(0.9, 9 / Math.sqrt(shown)));
      for (const at of one.kept.toReversed()) { // the best on top
        const strength = Math.sqrt(Math.abs(one.scores[at]) / most);
        const style = { colour: colours.of(one, at), width: 0.8 + 2.6 * strength, alpha: Math.max(faint, 0.9 * strength), negative: one.scores[at] < 0, head: shown <= 400 };
        this.edges.push({ one, at, points: bezier(place, one, at), style });
      }
    }
    for (const edge of this.edges) strokeEdge(context, edge.points, edge.style);
    context.globalAlpha = 1;
    this.tree = null;
    const words = SIDES.map((side, number) => `${panel.models[side].label}: ${whole(both[number].kept.length)} edges`).join("; ");
    this.base.setAttribute("aria-label", `The kept edges between the prompt's tokens. ${words}. The tables below list them.`);
    this.highlight(null);
  }

  // Tokens, names of the sides, and in the layered graph its columns.
  frame(context, tokens) {
    const { place, panel } = this;
    const centre = place.panel + place.middle / 2;
    context.textBaseline = "middle";
    context.textAlign = "center";
    if (state.shape === "layers") {
      context.strokeStyle = inkOf("line");
      context.fillStyle = inkOf("ink-3");
      context.font = `11px ${FONT}`;
      for (const side of SIDES) {
        const x = place.columns[side];
        const step = Math.ceil(26 / (x(1) - x(0)));
        for (let layer = 0; layer <= place.layers; layer++) {
          context.beginPath();
          context.moveTo(x(layer), place.top);
          context.lineTo(x(layer), place.height - 10);
          context.stroke();
          if (layer < place.layers && layer % step === 0) context.fillText(`L${layer}`, (x(layer) + x(layer + 1)) / 2, place.top - 8);
        }
      }
    }
    context.font = `${place.text}px ${FONT}`;
    const different = panel.explorer.prompts[state.prompt];
    tokens.forEach((token, at) => {
      if (different.corrupted[at] !== token) {
        context.fillStyle = inkOf("mark-soft");
        context.beginPath();
        context.roundRect(place.panel + 4, place.y(at) - place.row / 2 + 0.5, place.middle - 8, place.row - 1, 3);
        context.fill();
      }
      context.fillStyle = inkOf("ink");
      context.fillText(fitted(context, label(token), place.middle - 14), centre, place.y(at) + 0.5);
    });
  }

  find(event) {
    const box = this.base.getBoundingClientRect();
    this.tree ??= this.sampled();
    const found = this.tree.find(event.clientX - box.left, event.clientY - box.top, event.pointerType === "touch" ? 22 : 9);
    return found?.edge ?? null;
  }

  // Points along every edge, made when somebody first points.
  sampled() {
    const samples = this.edges.flatMap((edge) => d3.range(1, 20).map((step) => ({ edge, at: along(edge.points, step / 20) })));
    return d3.quadtree(samples, (sample) => sample.at[0], (sample) => sample.at[1]);
  }

  point(event) {
    if (!this.edges) return;
    const box = this.base.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const token = Math.floor((y - this.place.top) / this.place.row);
    if (Math.abs(x - this.place.width / 2) < this.place.middle / 2 && token >= 0 && token < this.place.n) return this.pointToken(event, token);
    const edge = this.find(event);
    if (!edge) return this.highlight(null);
    this.highlight((other) => other === edge);
    return showTip(event, edgeLines(edge.one, edge.at));
  }

  pointToken(event, token) {
    const touches = (edge) => edge.one.query[edge.at] === token || edge.one.from[edge.at] === token;
    this.highlight(touches);
    const count = (side, end) => this.edges.filter((edge) => edge.one.side === side && edge.one[end][edge.at] === token).length;
    showTip(event, [make("b", {}, `${quoted(this.both[0].tokens[token])}, token ${token + 1}`),
      ...SIDES.map((side) => `${this.panel.models[side].label}: looks along ${whole(count(side, "query"))}, is looked at along ${whole(count(side, "from"))}`)]);
  }

  // Draw some edges over the others, which fade.
  highlight(wanted) {
    if (!this.pen) return;
    this.pen.clearRect(0, 0, this.place.width, this.place.height);
    this.base.classList.toggle("faded", wanted !== null);
    this.holder.dataset.highlighted = "0";
    if (wanted === null) return hideTip();
    const chosen = this.edges.filter(wanted);
    this.holder.dataset.highlighted = chosen.length;
    this.frame(this.pen, this.both[0].tokens); // tokens don't fade
    for (const edge of chosen) strokeEdge(this.pen, edge.points, { ...edge.style, width: edge.style.width + 0.8, alpha: 1 });
    this.pen.globalAlpha = 1;
    this.pen.setLineDash([]);
    return undefined;
  }
}

const SHUT_HERE = "Shut on the clean prompt, but not in what replaces it: that is what it is scored for.";

function edgeLines(one, at) {
  const place = { layer: one.layer[at], head: one.head[at] };
  const value = attentionOf(one, at);
  return [
    make("b", {}, `${headName(place)} of ${one.panel.models[one.side].label}`),
    `${quoted(one.tokens[one.query[at]])} (${one.query[at] + 1}) looks at ${quoted(one.tokens[one.from[at]])} (${one.from[at] + 1})`,
    `attention ${weight(value)}, score ${signed(one.scores[at])}`,
    value === 0 ? SHUT_HERE : null,
    `edge ${whole(at + 1)} of this prompt; head: ${rankText(one.panel, one.side, place)}`,
  ];
}
