// Attention patterns on canvas: query down, key across, dark is attention on a square-root scale.

const RAMPS = {
  light: ["#f4f6f9", "#9db4d6", "#1b3a6b", "#050a18"],
  dark: ["#191c22", "#30507f", "#86abdf", "#f4f7ff"],
};
const bitmaps = new Map(); // of the last few prompts, each head drawn once
const KEPT_BITMAPS = 1200;

function levelColours() {
  const ramp = d3.piecewise(d3.interpolateRgb, isDark() ? RAMPS.dark : RAMPS.light);
  return d3.range(256).map((level) => d3.rgb(ramp(level / 255)));
}

// A head's pattern as an image of one pixel an edge.
function bitmap(one, layer, head) {
  const name = `${one.key}/${layer}/${head}/${isDark()}`;
  if (!bitmaps.has(name)) {
    const n = one.tokens.length;
    const image = new ImageData(n, n);
    const colours = (bitmap.colours ??= new Map()).get(isDark()) ?? levelColours();
    bitmap.colours.set(isDark(), colours);
    const pattern = one.pattern(layer, head);
    for (let query = 0, place = 0; query < n; query++) {
      for (let key = 0; key <= query; key++, place++) {
        const at = 4 * (query * n + key);
        const { r, g, b } = colours[pattern[place]];
        image.data[at] = r;
        image.data[at + 1] = g;
        image.data[at + 2] = b;
        image.data[at + 3] = 255;
      }
    }
    const drawn = make("canvas", { width: n, height: n });
    drawn.getContext("2d").putImageData(image, 0, 0);
    bitmaps.set(name, drawn);
    if (bitmaps.size > KEPT_BITMAPS) bitmaps.delete(bitmaps.keys().next().value);
  }
  return bitmaps.get(name);
}

// Pixels stay square when a pattern is enlarged, and are averaged when it is made smaller.
function drawBitmap(context, one, layer, head, x, y, side) {
  context.imageSmoothingEnabled = side * (devicePixelRatio || 1) < one.tokens.length;
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap(one, layer, head), x, y, side, side);
}

// A pattern large enough to read, with tokens on both axes. `room` is the width it may take.
function largePattern(one, layer, head, room, { hover = true } = {}) {
  const n = one.tokens.length;
  const pen = canvas(1, 1).context;
  const font = (pixels) => `${pixels}px ${FONT}`;
  const words = one.tokens.map(label);
  const rough = Math.min(26, (room - 60) / n);
  const text = Math.max(8, Math.min(12, rough - 1));
  pen.font = font(text);
  const margin = Math.ceil(Math.min(room * 0.28, d3.max(words, (word) => pen.measureText(word).width) + 10));
  const cell = Math.max(1, Math.min(26, (room - margin - 2) / n));
  const square = cell * n;
  const every = Math.max(1, Math.ceil((text + 1) / cell)); // labels that would touch are left out
  const strongest = strongestEdge(one, layer, head);
  const title = `Attention pattern of ${headName({ layer, head })}, ${one.panel.models[one.side].label}. ${strongest}`;
  const drawn = canvas(margin + square + 2, margin + square + 2, hover
    ? { role: "application", "aria-roledescription": "attention pattern", tabindex: 0, "data-key": `pattern-${one.side}`, "aria-label": `${title} Arrow keys read its cells.` }
    : { role: "img", "aria-label": title });
  const { node, context } = drawn;
  const paint = (query = -1, key = -1) => {
    context.clearRect(0, 0, margin + square + 2, margin + square + 2);
    context.font = font(text);
    context.textBaseline = "middle";
    words.forEach((word, at) => {
      const middle = margin + (at + 0.5) * cell;
      const near = (place) => place < 0 || place === at;
      context.fillStyle = inkOf("ink-2");
      if (at === query || (at % every === 0 && (query < 0 || every === 1 || Math.abs(at - query) >= every))) {
        context.globalAlpha = near(query) ? 1 : 0.35;
        context.textAlign = "right";
        context.fillText(fitted(context, word, margin - 8), margin - 5, middle);
      }
      if (at === key || (at % every === 0 && (key < 0 || every === 1 || Math.abs(at - key) >= every))) {
        context.globalAlpha = near(key) ? 1 : 0.35;
        context.save();
        context.translate(middle, margin - 5);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
        context.fillText(fitted(context, word, margin - 8), 0, 0);
        context.restore();
      }
    });
    context.globalAlpha = 1;
    drawBitmap(context, one, layer, head, margin, margin, square);
    context.strokeStyle = inkOf("line");
    context.strokeRect(margin - 0.5, margin - 0.5, square + 1, square + 1);
    if (query >= 0) {
      context.strokeStyle = inkOf("mark");
      context.lineWidth = 2;
      const ring = Math.max(cell + 1, 8); // a cell can be smaller than what an eye finds
      context.strokeRect(margin + (key + 0.5) * cell - ring / 2, margin + (query + 0.5) * cell - ring / 2, ring, ring);
      context.lineWidth = 1;
    }
  };
  paint();
  if (hover) readCells(node, { one, layer, head, margin, cell, paint });
  return node;
}

// The cell under the pointer, or the one that the keys reach.
function readCells(node, { one, layer, head, margin, cell, paint }) {
  const n = one.tokens.length;
  let at = null; // where the keys are: query, key
  const show = (event, query, key) => {
    const value = weightOf(levelAt(one.pattern(layer, head), query, key));
    const lines = [`${quoted(one.tokens[query])} (${query + 1}) looks at ${quoted(one.tokens[key])} (${key + 1})`, `attention ${weight(value)}`];
    paint(query, key);
    showTip(event, [make("b", {}, headName({ layer, head })), ...lines]);
    if (!(event instanceof Event)) say(lines.join(", "));
  };
  const leave = () => { paint(...(at && document.activeElement === node ? at : [])); hideTip(); };
  node.addEventListener("pointermove", (event) => {
    const box = node.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - margin) / cell);
    const query = Math.floor((event.clientY - box.top - margin) / cell);
    const inside = query >= 0 && query < n && key >= 0 && key <= query;
    return inside ? show(event, query, key) : leave();
  });
  node.addEventListener("pointerleave", leave);
  node.addEventListener("blur", leave);
  node.addEventListener("keydown", (event) => {
    const far = event.ctrlKey ? Infinity : 0; // Home and End stay in the row, with control they go to the corners
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], PageDown: [10, 0], PageUp: [-10, 0], Home: [-far, -Infinity], End: [far, Infinity] };
    if (!(event.key in steps) || event.altKey || event.metaKey) return; // those are the browser's
    event.preventDefault();
    const [down, across] = at ? steps[event.key] : [0, 0]; // the first key shows the first cell
    const query = Math.max(0, Math.min(n - 1, (at?.[0] ?? 0) + down));
    const key = Math.max(0, Math.min(query, (at?.[1] ?? 0) + across));
    at = [query, key];
    const place = () => {
      const box = node.getBoundingClientRect();
      return { clientX: box.left + margin + (key + 0.5) * cell, clientY: box.top + margin + (query + 0.5) * cell };
    };
    const { clientX, clientY } = place();
    if (document.elementFromPoint(clientX, clientY) !== node) scrollBy(0, clientY - innerHeight / 2); // out of sight, or under a bar
    show(place(), query, key);
  });
}

function strongestEdge(one, layer, head) {
  const pattern = one.pattern(layer, head);
  let best = -1, query = 0, key = 0;
  for (let row = 1, place = 1; row < one.tokens.length; row++)
    for (let column = 0; column <= row; column++, place++)
      if (pattern[place] > best) { best = pattern[place]; query = row; key = column; }
  if (best <= 0) return "No edge is open.";
  return `Strongest after the first token: ${quoted(one.tokens[query])} looks at ${quoted(one.tokens[key])}, ${weight(weightOf(best))}.`;
}

const openShare = (one, layer, head) => {
  const pattern = one.pattern(layer, head);
  return pattern.reduce((count, level) => count + (level > 0), 0) / pattern.length;
};

// Dense and sparse patterns of one head, with its ranks.
async function headPair(panel, prompt, place, room) {
  const both = await Promise.all(SIDES.map((side) => explored(panel, side, prompt)));
  const { layer, head } = place;
  return make("div", { class: "pair" }, ...both.map((one, number) => {
    const figure = make("figure", { "data-side": SIDES[number] },
      make("figcaption", {},
        make("span", { class: "name" }, swatch(colourOf(panel, SIDES[number])), panel.models[SIDES[number]].label),
        make("span", { class: "detail" }, `${rankText(panel, SIDES[number], place)}; ${percent(openShare(one, layer, head))} of its edges are open here`)),
      largePattern(one, layer, head, room));
    figure.style.width = `${room}px`;
    return figure;
  }));
}
