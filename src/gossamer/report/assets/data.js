// The run's data: JSON at once, large arrays when they are wanted.

const report = JSON.parse(document.getElementById("data").textContent);
const opened = new Map(); // file name -> promise of its bytes

function file(name) {
  if (!opened.has(name)) opened.set(name, unpack(name));
  return opened.get(name);
}

async function unpack(name) {
  const node = [...document.querySelectorAll("script[data-file]")].find((script) => script.dataset.file === name);
  const text = atob(node.textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One model on one prompt: patterns of all heads, and the edges ranked, best first.
async function explored(panel, side, prompt) {
  const { buffer } = await file(`${panel.id}/${side}`);
  const entry = panel.explorer.prompts[prompt];
  const own = entry.sides[side];
  const { layers, heads_per_layer: heads } = panel.models[side];
  const tokens = entry.clean;
  const triangle = (tokens.length * (tokens.length + 1)) / 2;
  const index = new Int16Array(buffer, own.index, 4 * own.edges);
  const column = (number) => index.subarray(number * own.edges, (number + 1) * own.edges);
  const patterns = new Uint8Array(buffer, own.patterns, layers * heads * triangle);
  return {
    key: `${panel.id}/${side}/${prompt}`,
    panel, side, tokens, layers, heads,
    layer: column(0), head: column(1), query: column(2), from: column(3),
    scores: new Float32Array(buffer, own.scores, own.edges),
    edges: own.edges,
    // The lower triangle of a head's pattern, row by row, in levels of 255 sqrt(weight).
    pattern: (layer, head) => patterns.subarray((layer * heads + head) * triangle, (layer * heads + head + 1) * triangle),
  };
}

const weightOf = (level) => (level / 255) ** 2;
const levelAt = (pattern, query, key) => pattern[(query * (query + 1)) / 2 + key];

function rankOf(panel, side, { layer, head }) {
  const place = layer * panel.models[side].heads_per_layer + head;
  const { rank, score } = panel.heads[side];
  return { rank: rank[place], score: score[place], of: rank.length };
}

// A head that never moves the metric has no rank: it is tied with all others of its kind.
function rankText(panel, side, place) {
  const { rank, score, of } = rankOf(panel, side, place);
  return score ? `rank ${rank} of ${of} on the task, mean score ${signed(score)}` : "no rank on the task: its scores are 0";
}

// The edges of a model that are not exactly 0, by head: on held-out text if its training says so, else on the prompts.
async function edgesLeft(panel) {
  const trained = report.trainings.find((training) => training.name === panel.models.sparse.name);
  if (trained?.evaluation.edges_by_head) return { shares: trained.evaluation.edges_by_head, on: "held-out text" };
  const { layers, heads_per_layer: heads } = panel.models.sparse;
  const open = d3.range(layers).map(() => new Array(heads).fill(0));
  let all = 0;
  for (let prompt = 0; prompt < panel.explorer.prompts.length; prompt++) {
    const one = await explored(panel, "sparse", prompt);
    all += (one.tokens.length * (one.tokens.length + 1)) / 2;
    for (let layer = 0; layer < layers; layer++)
      for (let head = 0; head < heads; head++)
        open[layer][head] += one.pattern(layer, head).reduce((count, level) => count + (level > 0), 0);
  }
  return { shares: open.map((row) => row.map((count) => count / all)), on: "this page's prompts" };
}
