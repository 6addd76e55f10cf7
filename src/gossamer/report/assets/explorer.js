// Circuit explorer: a prompt, the k best edges of both models on it, and what they explain.

const MOST_ROWS = 50; // of the edge tables

const explorerView = {
  mount(section) {
    this.fields = make("div", { class: "controls" });
    this.prompts = make("div", { class: "prompts" });
    this.slider = sizeSlider();
    this.holder = make("div", { class: "circuit", id: "circuit" });
    this.legend = make("ul", { class: "legend" });
    this.sides = make("div", { class: "sides", "aria-hidden": true });
    this.chips = make("div", { class: "chips" });
    this.head = make("aside", { class: "head", "aria-label": "The chosen head" });
    this.tables = make("div", { class: "tables" });
    this.body = make("div", {}, this.fields, this.prompts, this.slider.node,
      make("div", { class: "split" },
        make("div", {}, this.legend, this.sides, this.holder, this.chips, this.tables), this.head));
    this.none = make("div", {});
    section.append(make("h1", {}, "Circuit explorer"),
      make("p", { class: "lead" }, "The k attention edges that matter most on a prompt, dense beside sparse. Each runs from the token that is read to the token that reads it; its width is its score, dashed where it hurts. Point at an edge or a token to read it; click an edge to see its head."),
      this.none, this.body);
    this.drawing = new CircuitDrawing(this.holder, { onhead: (head) => setState({ head }) });
  },

  async update() {
    const panel = currentPanel();
    this.body.hidden = !panel.explorer.prompts;
    this.none.replaceChildren(...(panel.explorer.prompts ? [] : [make("div", { class: "controls" }, taskField()), missing(panel)]));
    if (!panel.explorer.prompts) return;
    refill(this.fields, taskField(), promptField(panel),
      choice("Drawn as", "shape", { arcs: "arcs", layers: "layers" }), choice("Coloured by", "colour", { layer: "layer", head: "head" }));
    showPrompts(this.prompts, panel);
    this.slider.show(panel);
    const k = currentSize(panel);
    const shown = [panel.id, state.prompt];
    const both = await Promise.all(SIDES.map((side) => explored(panel, side, state.prompt)));
    if (shown[0] !== state.task || shown[1] !== state.prompt) return; // something else was chosen meanwhile
    for (const one of both) {
      one.cut = reach(one, k).cut;
      one.kept = d3.range(Math.min(k, one.edges)).filter((at) => one.scores[at] !== 0); // others are kept, and do nothing
    }
    const colours = edgeColours(panel, both);
    this.legend.replaceChildren(...colours.legend.map(({ colour, name }) => make("li", {}, swatch(colour), name)));
    this.sides.replaceChildren(...SIDES.map((side) => make("span", {}, panel.models[side].label)));
    this.drawing.draw(panel, both, colours);
    Object.assign(this.holder.dataset, { k, shape: state.shape, colour: state.colour, drawn: this.drawing.edges.length });
    showHeads(this.chips, both, this.drawing);
    showEdges(this.tables, both, k, this.drawing);
    await this.showHead(panel, both);
  },

  async showHead(panel, both) {
    const place = state.head ?? bestHead(panel);
    const kept = both.map((one) => one.kept.filter((at) => one.layer[at] === place.layer && one.head[at] === place.head).length);
    const room = onPaper() ? 330 : Math.min(360, Math.max(240, this.head.clientWidth - 30)); // paper has room for two
    const shown = [panel.id, state.prompt, headName(place), room, isDark(), onPaper()].join("/");
    if (this.shown !== shown) this.pair = await headPair(panel, state.prompt, place, room); // it does not hang on k
    this.shown = shown;
    this.head.dataset.head = headName(place);
    refill(this.head,
      make("div", { class: "title" }, make("h2", {}, headName(place)), headField(panel, place)),
      make("p", { class: "detail" }, `Of the ${both.some((one) => one.cut) ? `first ${whole(d3.max(both, (one) => one.edges))} ` : ""}edges kept it has ${whole(kept[0])} in the dense model, ${whole(kept[1])} in the sparse one.`),
      this.pair);
  },
};

// How many edges a prompt keeps at k, which it may not have; and whether the page holds fewer than that.
function reach(one, k) {
  const all = Math.min(k, (one.layers * one.heads * one.tokens.length * (one.tokens.length + 1)) / 2);
  return { all, cut: all > one.edges };
}

const bestHead = (panel) => {
  const place = panel.heads.sparse.rank.indexOf(1), heads = panel.models.sparse.heads_per_layer;
  return { layer: Math.floor(place / heads), head: place % heads };
};

function headField(panel, chosen) {
  const { layers, heads_per_layer: heads } = panel.models.dense;
  const all = d3.cross(d3.range(layers), d3.range(heads), (layer, head) => headName({ layer, head }));
  return dropdown("Head", "head", all.map((name) => [name, name]), headName(chosen), (name) => {
    const [layer, head] = name.slice(1).split("H").map(Number);
    setState({ head: { layer, head } });
  });
}

// Both prompts, what differs marked, and what the models would say next.
function showPrompts(node, panel) {
  const prompt = panel.explorer.prompts[state.prompt];
  const row = (title, tokens, after) => make("div", { class: "prompt", "data-prompt": after },
    make("div", {}, make("h2", {}, title), make("p", { class: "text" }, ...tokens.map((token, at) =>
      (prompt.clean[at] === prompt.corrupted[at] ? make("bdi", {}, visible(token)) : marked(visible(token)))))),
    make("div", { class: "guesses" }, ...SIDES.map((side) => guesses(panel, side, prompt.sides[side][after], after === "after_clean" ? "" : " for clean"))));
  node.replaceChildren(row("Clean prompt", prompt.clean, "after_clean"), row("Corrupted prompt", prompt.corrupted, "after_corrupted"));
}

// The space before a word is not part of the difference.
function marked(token) {
  const [, space, word] = /^(\s*)(.*)$/s.exec(token);
  const whole = document.createDocumentFragment();
  whole.append(word ? space : "", make("mark", {}, make("bdi", {}, word || token)));
  return whole;
}

// Right and wrong are the clean prompt's answers, after either prompt.
function guesses(panel, side, list, whose) {
  return make("table", { class: "guess" },
    make("caption", {}, swatch(colourOf(panel, side)), `${panel.models[side].label} predicts`),
    make("tbody", {}, ...list.map(([token, probability, kind]) => {
      const bar = d3.create("svg").attr("width", 60).attr("height", 8).attr("aria-hidden", true);
      bar.append("rect").attr("width", Math.max(1, 60 * probability)).attr("height", 8).attr("rx", 1).attr("fill", colourOf(panel, side));
      return make("tr", { class: kind }, make("th", { scope: "row" }, quoted(token)), make("td", {}, bar.node()),
        make("td", { class: "number" }, percent(probability)), make("td", { class: "kind" }, kind === "right" ? `✓ right${whose}` : kind === "wrong" ? `✗ wrong${whose}` : ""));
    })));
}

// k on the measured sizes: every number beside it is a forward pass, none is interpolated. The slider itself stays in
// place while the state changes: one that is replaced can't be dragged.
function sizeSlider() {
  const input = make("input", { type: "range", min: 0, step: 1, id: "k",
    oninput: (event) => setState({ k: edgeSizes(currentPanel())[event.target.value] }) });
  const now = make("output", { for: "k", id: "k-now" });
  const jumps = make("div", { class: "jumps" }), effects = make("div", {}), hint = make("p", { class: "hint" });
  const node = make("div", { class: "slider" },
    make("div", { class: "size" }, make("label", { for: "k" }, "Edges kept, k = ", now), input, jumps, hint), effects);
  const show = (panel) => {
    const sizes = edgeSizes(panel), k = currentSize(panel), at = sizes.indexOf(k);
    input.max = sizes.length - 1;
    input.value = at;
    input.setAttribute("aria-valuetext", `${whole(k)} edges`);
    now.textContent = whole(k);
    const curve = panel.curves.edges_sentence, prompt = panel.explorer.prompts[state.prompt];
    refill(jumps, ...SIDES.filter((side) => curve[side].k90 !== null).map((side) =>
      make("button", { type: "button", class: "quiet", "data-key": `k90-${side}`, onclick: () => setState({ k: sizes.find((other) => other >= curve[side].k90) ?? sizes.at(-1) }) },
        `k90 ${side}: ${whole(curve[side].k90)}`)));
    effects.replaceChildren(effectTable(panel, prompt, at));
    const most = d3.max(SIDES, (side) => prompt.sides[side].edges);
    const { layers, heads_per_layer: heads } = panel.models.dense;
    const { all, cut } = reach({ layers, heads, tokens: prompt.clean, edges: most }, k);
    hint.hidden = !cut && all === k;
    hint.textContent = [all < k ? `This prompt has ${whole(all)} edges.` : "", cut ? `Drawn and counted are those of the first ${whole(most)} with a score; the effect is that of all ${whole(all)}.` : ""].join(" ").trim();
  };
  return { node, show };
}

function effectTable(panel, prompt, at) {
  const curve = panel.curves.edges_sentence;
  return make("table", { class: "effects", id: "effects" },
    make("caption", {}, "Explained effect"),
    make("thead", {}, make("tr", {}, make("td", {}), make("th", { scope: "col" }, "this prompt"), make("th", { scope: "col" }, "all prompts"))),
    make("tbody", {}, ...SIDES.map((side) => make("tr", { "data-side": side },
      make("th", { scope: "row" }, swatch(colourOf(panel, side)), panel.models[side].label),
      make("td", { class: "number" }, share(prompt.sides[side].effect[at])),
      make("td", { class: "number" }, share(curve[side].effect[at]), make("small", {}, ` ${share(curve[side].low[at])} to ${share(curve[side].high[at])}`))))));
}

// The heads of the kept edges, as buttons.
function showHeads(node, both, drawing) {
  refill(node, ...both.map((one) => {
    const counts = d3.rollups(one.kept, (places) => places.length, (at) => one.layer[at] * one.heads + one.head[at])
      .sort((a, b) => d3.descending(a[1], b[1]));
    const shown = counts.slice(0, 12);
    return make("div", { "data-side": one.side },
      make("h3", {}, `${whole(counts.length)} head${counts.length === 1 ? "" : "s"}${one.cut ? ` in the first ${whole(one.edges)} edges` : ""}`),
      ...shown.map(([place, count]) => {
        const head = { layer: Math.floor(place / one.heads), head: place % one.heads };
        const own = (edge) => edge.one === one && edge.one.layer[edge.at] === head.layer && edge.one.head[edge.at] === head.head;
        return make("button", { type: "button", class: "chip", "data-head": headName(head), "data-key": `${one.side}-${headName(head)}`, "aria-label": `${headName(head)}, ${count} edge${count === 1 ? "" : "s"}: show its pattern`,
          onclick: () => setState({ head }), onpointerenter: () => drawing.highlight(own), onpointerleave: () => drawing.highlight(null),
          onfocus: () => drawing.highlight(own), onblur: () => drawing.highlight(null) },
        headName(head), make("small", {}, whole(count)));
      }),
      counts.length > shown.length ? make("span", { class: "hint" }, `and ${whole(counts.length - shown.length)} more`) : null);
  }));
}

// The same edges as tables, for those who can't or don't want to point.
function showEdges(node, both, k, drawing) {
  refill(node, ...both.map((one) => {
    const shown = one.kept.slice(0, MOST_ROWS);
    const rows = shown.map((at) => {
      const place = { layer: one.layer[at], head: one.head[at] };
      const own = (edge) => edge.one === one && edge.at === at;
      return make("tr", { onpointerenter: () => drawing.highlight(own), onpointerleave: () => drawing.highlight(null) },
        make("td", { class: "number" }, whole(at + 1)),
        make("td", {}, make("button", { type: "button", class: "chip", "data-head": headName(place), "data-key": `${one.side}-${at}`, onclick: () => setState({ head: place }),
          onfocus: () => drawing.highlight(own), onblur: () => drawing.highlight(null) }, headName(place))),
        tokenCell(one, one.query[at]), tokenCell(one, one.from[at]),
        make("td", { class: "number" }, weight(attentionOf(one, at))), make("td", { class: "number" }, signed(one.scores[at])));
    });
    return make("div", { class: "wide long", tabindex: 0, "data-key": `edges-${one.side}`, role: "region", "aria-label": `Edges of ${one.panel.models[one.side].label}` },
      make("table", { "data-side": one.side },
        make("caption", {}, swatch(colourOf(one.panel, one.side)), `${one.panel.models[one.side].label}: ${edgeCount(one, k, shown.length)}`),
        make("thead", {}, make("tr", {}, ...["", "Head", "Query", "looks at key", "Attention", "Score"].map((text, at) =>
          make(text ? "th" : "td", text ? { scope: "col", class: at > 3 ? "number" : "" } : {}, text)))),
        make("tbody", {}, ...rows)),
      shown.some((at) => attentionOf(one, at) === 0) ? make("p", { class: "hint" }, `Attention 0: ${SHUT_HERE.toLowerCase()}`) : null);
  }));
}

const attentionOf = (one, at) => weightOf(levelAt(one.pattern(one.layer[at], one.head[at]), one.query[at], one.from[at]));
const tokenCell = (one, at) => make("td", {}, quoted(one.tokens[at]), make("small", {}, ` ${at + 1}`));

function edgeCount(one, k, shown) {
  const all = one.kept.length, idle = Math.min(k, one.edges) - all;
  const held = one.cut ? ` of the first ${whole(one.edges)}` : "";
  const text = shown < all ? `the first ${whole(shown)} of ${whole(all)} edges` : `${whole(all)} edge${all === 1 ? "" : "s"}`;
  return idle ? `${text}${held}, the other ${whole(idle)} with a score of 0` : `${text}${held}`;
}
