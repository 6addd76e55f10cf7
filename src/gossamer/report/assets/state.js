"use strict";
// What the page shows, kept in the URL's fragment so that a link to it can be shared.

const VIEWS = { overview: "Overview", curves: "Curves", explorer: "Circuit explorer", grid: "Heads grid", sparsity: "Sparsity" };
const CHOICES = {
  units: ["heads", "edges"],
  ranking: ["sentence", "dataset"],
  scale: ["auto", "linear", "log"],
  controls: ["off", "on"],
  shape: ["arcs", "layers"],
  colour: ["layer", "head"],
  side: ["both", "dense", "sparse"],
  sort: ["layer", "importance"],
};
const ZOOM = { least: 24, most: 200, start: 72 };
const SIDES = ["dense", "sparse"];

const state = {};

// Everything in the fragment comes from whoever wrote the link: what is not a known choice is left out.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (/^\d{1,9}$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  state.view = Object.hasOwn(VIEWS, given.get("view")) ? given.get("view") : "overview";
  state.task = report.panels.some((panel) => panel.id === given.get("task")) ? given.get("task") : report.panels[0].id;
  for (const [name, values] of Object.entries(CHOICES)) {
    state[name] = values.includes(given.get(name)) ? given.get(name) : values[0];
  }
  state.prompt = number("prompt") ?? 0;
  state.k = number("k");
  state.zoom = number("zoom") ?? ZOOM.start;
  const head = /^L(\d{1,4})H(\d{1,4})$/.exec(given.get("head") ?? "");
  state.head = head ? { layer: Number(head[1]), head: Number(head[2]) } : null;
  settle();
}

// Bring numbers into the range of the chosen task.
function settle() {
  const panel = currentPanel();
  const prompts = panel.explorer.prompts?.length ?? 1;
  state.prompt = Math.min(state.prompt, prompts - 1);
  state.zoom = Math.max(ZOOM.least, Math.min(ZOOM.most, state.zoom));
  if (state.units === "edges") state.ranking = "sentence"; // edges have no ranking over prompts of different lengths
  if (state.k !== null) {
    const sizes = edgeSizes(panel);
    state.k = sizes[d3.bisectCenter(sizes, state.k)];
  }
  const model = panel.models.dense;
  if (state.head && (state.head.layer >= model.layers || state.head.head >= model.heads_per_layer)) state.head = null;
}

function fragment(change = {}) {
  const next = { ...state, ...change };
  const words = new URLSearchParams({ view: next.view, task: next.task });
  for (const [name, values] of Object.entries(CHOICES)) if (next[name] !== values[0]) words.set(name, next[name]);
  if (next.prompt) words.set("prompt", next.prompt);
  if (next.k !== null) words.set("k", next.k);
  if (next.zoom !== ZOOM.start) words.set("zoom", next.zoom);
  if (next.head) words.set("head", headName(next.head));
  return `#${words}`;
}

function setState(change) {
  if ("task" in change && change.task !== state.task) change = { k: null, head: null, prompt: 0, ...change };
  Object.assign(state, change);
  settle();
  history.replaceState(null, "", fragment());
  render();
}

const currentPanel = () => report.panels.find((panel) => panel.id === state.task);
const edgeSizes = (panel) => panel.curves.edges_sentence.dense.k;
const headName = ({ layer, head }) => `L${layer}H${head}`;

// The size that is shown: the chosen one, or the first measured one at which the sparse circuit explains 90%.
function currentSize(panel) {
  if (state.k !== null) return state.k;
  const sizes = edgeSizes(panel);
  const wanted = panel.curves.edges_sentence.sparse.k90 ?? panel.curves.edges_sentence.dense.k90 ?? 10;
  return sizes.find((k) => k >= wanted) ?? sizes.at(-1);
}
