// Heads grid: every head's pattern on one prompt. Only the squares in sight are drawn.

const LABEL = 15; // pixels above a square for its name
const GAP = 8;

const gridView = {
  mount(section) {
    this.fields = make("div", { class: "contents" });
    this.zoom = make("input", { type: "range", min: ZOOM.least, max: ZOOM.most, "data-choice": "zoom", id: "zoom", oninput: (event) => setState({ zoom: Number(event.target.value) }) });
    this.zoomField = make("label", { class: "field zoom" }, make("span", {}, "Zoom"), this.zoom); // stays, or it could not be dragged
    this.body = make("div", { class: "grids" });
    this.none = make("div", {});
    this.chosen = make("p", { class: "detail chosen" });
    this.large = make("div", { class: "large", "aria-hidden": true, hidden: true });
    section.append(make("h1", {}, "Heads grid"),
      make("p", { class: "lead" }, "Every head's attention pattern: query down, key across; the stronger the tone, the more attention, on a square-root scale. Point at a square to enlarge it, or focus the grid and use the arrow keys; + and − zoom."),
      this.none, make("div", { class: "controls" }, this.fields, this.zoomField), this.chosen, this.body);
    document.body.append(this.large);
    this.boards = new Map();
  },

  async update() {
    const panel = currentPanel();
    const there = Boolean(panel.explorer.prompts);
    this.body.hidden = this.chosen.hidden = this.zoomField.hidden = !there;
    this.large.hidden = true;
    this.none.replaceChildren(...(there ? [] : [missing(panel)]));
    if (!there) return refill(this.fields, taskField());
    this.zoom.value = state.zoom;
    refill(this.fields, taskField(), promptField(panel), choice("Model", "side", { both: "both", dense: "dense", sparse: "sparse" }),
      choice("Order", "sort", { layer: "layer", importance: "importance" }));
    const sides = state.side === "both" ? SIDES : [state.side];
    const all = await Promise.all(sides.map((side) => explored(panel, side, state.prompt)));
    if (panel.id !== state.task) return undefined;
    for (const side of SIDES) if (!this.boards.has(side)) this.boards.set(side, new Board(this, side));
    const wanted = sides.map((side) => this.boards.get(side).node);
    if (wanted.length !== this.body.children.length || wanted.some((node, at) => this.body.children[at] !== node)) this.body.replaceChildren(...wanted);
    all.forEach((one) => this.boards.get(one.side).show(one));
    this.tell(panel);
    return undefined;
  },

  tell(panel) {
    const place = state.head ?? bestHead(panel);
    const ranks = SIDES.map((side) => `${panel.models[side].label}: ${rankText(panel, side, place)}`).join("; ");
    this.chosen.replaceChildren(make("b", {}, headName(place)), ` ${ranks}. `,
      make("span", { class: "links" }, make("a", { href: fragment({ view: "sparsity", head: place }) }, "Dense and sparse side by side"), " · ",
        make("a", { href: fragment({ view: "explorer", head: place }) }, "In the circuit")));
  },
};

class Board {
  constructor(view, side) {
    this.view = view;
    this.canvas = make("canvas", {});
    this.spacer = make("div", { class: "spacer" });
    this.scroll = make("div", { class: "scroll", tabindex: 0, role: "application", "aria-roledescription": "grid of heads", "data-side": side }, this.canvas, this.spacer);
    this.caption = make("figcaption", {});
    this.node = make("figure", { class: "board" }, this.caption, this.scroll);
    this.at = -1;
    this.scroll.addEventListener("scroll", () => { this.hide(); this.later(); });
    this.scroll.addEventListener("pointermove", (event) => this.point(event));
    this.scroll.addEventListener("pointerleave", () => this.hide());
    this.scroll.addEventListener("blur", () => { this.at = -1; this.hide(); this.later(); });
    this.scroll.addEventListener("click", (event) => this.choose(this.under(event)));
    this.scroll.addEventListener("keydown", (event) => this.key(event));
    this.scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // a pinch, or the wheel with control
      event.preventDefault();
      setState({ zoom: Math.round(state.zoom * (event.deltaY < 0 ? 1.12 : 1 / 1.12)) });
    }, { passive: false });
    new ResizeObserver(() => this.one && this.lay()).observe(this.scroll);
  }

  show(one) {
    this.one = one;
    const { panel, side } = one;
    this.order = d3.range(one.layers * one.heads);
    if (state.sort === "importance") this.order.sort((a, b) => panel.heads[side].rank[a] - panel.heads[side].rank[b]);
    this.caption.replaceChildren(swatch(colourOf(panel, side)), `${panel.models[side].label}, ${this.order.length} heads`);
    this.scroll.setAttribute("aria-label", `Attention patterns of ${panel.models[side].label}, ${this.order.length} heads`);
    this.lay();
  }

  lay() {
    const width = this.scroll.clientWidth;
    if (!width) return;
    this.step = state.zoom + GAP;
    // In layer order a row is a layer, if it fits.
    const fit = Math.max(1, Math.floor((width - GAP) / this.step));
    this.columns = state.sort === "layer" && fit >= this.one.heads ? Math.floor(fit / this.one.heads) * this.one.heads : fit;
    this.rows = Math.ceil(this.order.length / this.columns);
    const height = this.rows * (this.step + LABEL) + GAP;
    Object.assign(this.scroll.dataset, { columns: this.columns, zoom: state.zoom, first: headName(this.headAt(0)) });
    if (onPaper()) {
      this.print(width);
      return;
    }
    if (this.canvas.parentNode !== this.scroll) this.scroll.replaceChildren(this.canvas, this.spacer);
    this.scroll.style.height = `${Math.min(height, Math.max(320, innerHeight * 0.68))}px`;
    this.context = sized(this.canvas, width, this.scroll.clientHeight);
    this.spacer.style.height = `${Math.max(0, height - this.scroll.clientHeight)}px`;
    this.draw();
  }

  // Paper does not scroll, and pages break between canvases only: one for each row.
  print(width) {
    const height = this.step + LABEL;
    this.scroll.style.height = "auto";
    this.scroll.replaceChildren(...d3.range(this.rows).map((row) => {
      const { node, context } = canvas(width, height);
      this.paint(context, row * height, row, row + 1);
      return node;
    }));
  }

  later() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.draw(); });
  }

  draw() {
    if (onPaper()) return;
    const step = this.step + LABEL;
    const top = this.scroll.scrollTop, height = this.scroll.clientHeight;
    this.context.clearRect(0, 0, this.scroll.clientWidth, height);
    this.paint(this.context, top, Math.max(0, Math.floor((top - GAP) / step)), Math.min(this.rows, Math.ceil((top + height) / step)));
  }

  paint(context, top, from, to) {
    const { one } = this;
    context.font = `${state.zoom < 34 ? 8.5 : 10.5}px ${FONT}`;
    context.textBaseline = "alphabetic";
    const chosen = state.head ?? bestHead(one.panel);
    for (let at = from * this.columns; at < Math.min(this.order.length, to * this.columns); at++) {
      const place = this.headAt(at);
      const [x, y] = this.corner(at);
      context.fillStyle = inkOf("ink-2");
      context.fillText(headName(place), x, y - top - 4);
      drawBitmap(context, one, place.layer, place.head, x, y - top, state.zoom);
      const marked = at === this.at || (place.layer === chosen.layer && place.head === chosen.head);
      context.strokeStyle = inkOf(marked ? "mark" : "line");
      context.lineWidth = at === this.at ? 3 : marked ? 2 : 1;
      context.strokeRect(x - 0.5, y - top - 0.5, state.zoom + 1, state.zoom + 1);
    }
  }

  corner(at) {
    return [GAP + (at % this.columns) * this.step, LABEL + GAP / 2 + Math.floor(at / this.columns) * (this.step + LABEL)];
  }

  headAt(at) {
    return { layer: Math.floor(this.order[at] / this.one.heads), head: this.order[at] % this.one.heads };
  }

  under(event) {
    const box = this.scroll.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - GAP / 2) / this.step);
    const row = Math.floor((event.clientY - box.top + this.scroll.scrollTop) / (this.step + LABEL));
    const at = row * this.columns + column;
    return column >= 0 && column < this.columns && at < this.order.length ? at : -1;
  }

  point(event) {
    const at = this.under(event);
    if (at < 0 || dismissed) return this.hide();
    return this.enlarge(at, event.clientX, event.clientY);
  }

  enlarge(at, x, y) {
    const { large } = this.view;
    const place = this.headAt(at), name = `${this.one.key}/${headName(place)}`;
    if (large.dataset.shown !== name || large.hidden) {
      large.replaceChildren(
        make("p", {}, make("b", {}, headName(place)), ` ${this.one.panel.models[this.one.side].label}, ${rankText(this.one.panel, this.one.side, place)}`),
        largePattern(this.one, place.layer, place.head, Math.min(460, innerWidth - 60, innerHeight - 110), { hover: false }));
      large.dataset.shown = name;
      large.dataset.head = headName(place);
      large.hidden = false;
    }
    placeNear(large, x, y, 22);
  }

  hide() {
    this.view.large.hidden = true;
  }

  choose(at) {
    if (at >= 0) setState({ head: this.headAt(at) });
  }

  key(event) {
    if (event.key === "+" || event.key === "=") return setState({ zoom: Math.round(state.zoom * 1.2) });
    if (event.key === "-") return setState({ zoom: Math.round(state.zoom / 1.2) });
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); return this.choose(this.at); }
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return undefined;
    event.preventDefault();
    this.at = this.at < 0 ? 0 : Math.max(0, Math.min(this.order.length - 1, this.at + steps[event.key]));
    const [x, y] = this.corner(this.at);
    const { scrollTop: top, clientHeight: height } = this.scroll;
    if (y - LABEL < top) this.scroll.scrollTop = y - LABEL - GAP;
    if (y + state.zoom > top + height) this.scroll.scrollTop = y + state.zoom + GAP - height;
    this.draw();
    const box = this.scroll.getBoundingClientRect();
    this.enlarge(this.at, box.left + x + state.zoom, box.top + y - this.scroll.scrollTop);
    const place = this.headAt(this.at);
    return say(`${headName(place)}, ${rankText(this.one.panel, this.one.side, place)}. ${strongestEdge(this.one, place.layer, place.head)}`);
  }
}
