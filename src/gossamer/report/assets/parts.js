// Pieces that the views share. All text goes in as text: nothing of a run is ever read as HTML.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A group of radio buttons that looks like one switch.
function choice(label, name, options, { disabled = [], onchange = (value) => setState({ [name]: value }) } = {}) {
  const group = make("fieldset", { class: "choice", "data-choice": name }, make("legend", {}, label));
  const row = make("div", { class: "options" });
  for (const [value, text] of Object.entries(options)) {
    const input = make("input", { type: "radio", name: `choice-${name}`, value, disabled: disabled.includes(value) });
    input.checked = value === state[name];
    input.addEventListener("change", () => onchange(value));
    row.append(make("label", {}, input, make("span", {}, text)));
  }
  group.append(row);
  return group;
}

function dropdown(label, name, options, chosen, onchange) {
  const select = make("select", { "data-choice": name, onchange: (event) => onchange(event.target.value) });
  options.forEach(([value, text]) => {
    const option = make("option", { value }, text);
    option.selected = value === chosen;
    select.append(option);
  });
  return make("label", { class: "field" }, make("span", {}, label), select);
}

function taskField() {
  return dropdown("Task", "task", report.panels.map((panel) => [panel.id, panelTitle(panel)]), state.task, (task) => setState({ task }));
}

function promptField(panel) {
  const first = panel.models.dense.first_token; // all begin with it: it tells none from another
  const options = panel.explorer.prompts.map((prompt, row) => [String(row), `${row + 1}: ${clip(prompt.clean.slice(prompt.clean[0] === first ? 1 : 0).join(""), 48)}`]);
  return dropdown("Prompt", "prompt", options, String(state.prompt), (row) => setState({ prompt: Number(row) }));
}

// Two panels of one task are told apart by their models.
function panelTitle(panel) {
  const same = report.panels.filter((other) => other.title === panel.title);
  return same.length > 1 ? `${panel.title}, ${panel.models.dense.label}` : panel.title;
}

// Controls are built anew when the state changes; whoever had the focus gets it back, and what was scrolled stays so.
function refill(node, ...children) {
  const held = node.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const scrolled = new Map([...node.querySelectorAll("[data-key]")].filter((other) => other.scrollTop).map((other) => [focusKey(other), other.scrollTop]));
  node.replaceChildren(...children.filter(Boolean));
  for (const other of scrolled.size ? node.querySelectorAll("[data-key]") : []) other.scrollTop = scrolled.get(focusKey(other)) ?? 0;
  if (held) [...node.querySelectorAll("input, select, button, [tabindex]")].find((other) => focusKey(other) === held)?.focus({ preventScroll: true });
}
const focusKey = (node) => [node.tagName, node.name, node.dataset.choice, node.dataset.key, node.type === "radio" ? node.value : ""].join("|");

const tip = document.getElementById("tip");
function showTip(event, lines) {
  if (event instanceof Event && dismissed) return;
  tip.replaceChildren(...lines.filter(Boolean).map((line) => (line instanceof Node ? line : make("div", {}, line))));
  tip.hidden = false;
  placeNear(tip, event.clientX, event.clientY);
}
function hideTip() {
  tip.hidden = true;
}
// Escape closes what hovers, wherever the focus is. A pointer that rests where it was then brings nothing back.
let pointer = null, dismissed = null; // where it is; where it was at Escape, until it moves
for (const type of ["pointermove", "pointerdown"]) {
  document.addEventListener(type, ({ clientX, clientY }) => {
    pointer = `${clientX} ${clientY}`;
    if (pointer !== dismissed) dismissed = null;
  }, true);
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  dismissed = pointer;
  for (const popup of document.querySelectorAll("#tip, .large")) popup.hidden = true;
}, true);
function placeNear(node, x, y, gap = 14) {
  const { width, height } = node.getBoundingClientRect();
  const left = x + gap + width > innerWidth - 8 ? x - gap - width : x + gap;
  const top = y + gap + height > innerHeight - 8 ? y - gap - height : y + gap;
  node.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  node.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}
const say = (text) => { document.getElementById("live").textContent = text; };

function download(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function csv(head, rows) {
  // A cell that begins like a formula would be run by a spreadsheet.
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// Tokens: as a label the leading space goes, and what can't be seen gets a sign. Characters that turn the direction of
// the text around them would turn the page's own words too.
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "�");
function label(token) {
  const shown = visible(token.replace(/^ (?=\S)/, ""));
  return shown.trim() === "" ? "␣".repeat(Math.max(1, shown.length)) : shown;
}
const quoted = (token) => `\u2068“${visible(token)}”\u2069`; // isolated, so that its quotes stay around it
const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

const whole = d3.format(",");
const share = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : d3.format(".2f")(value));
const percent = (value) => `${d3.format(".3~r")(value * 100)}%`;
const signed = (value) => d3.format("+.3~g")(value);
const times = (value) => d3.format(value === 1 || value >= 1.05 ? ".1f" : ".2f")(value); // 0.96 is not 1.0
const size = (k) => (k === null ? "not reached" : whole(k));
const weight = (value) => (value === 0 ? "0" : value < 0.001 ? "< 0.001" : d3.format(".3f")(value));

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const inkOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// The figures' colours are made for paper; on a dark page they are lighter.
const tone = (colour) => (isDark() ? d3.interpolateRgb(colour, "#ffffff")(0.28) : colour);
const colourOf = (panel, side) => tone(panel.colours[SIDES.indexOf(side)]);

const swatch = (colour, dash) => {
  const mark = d3.create("svg").attr("class", "swatch").attr("width", 22).attr("height", 10).attr("aria-hidden", true);
  mark.append("line").attr("x1", 1).attr("x2", 21).attr("y1", 5).attr("y2", 5).attr("stroke", colour).attr("stroke-width", 2.5).attr("stroke-dasharray", dash ?? null);
  return mark.node();
};

const onPaper = () => document.documentElement.hasAttribute("data-paper");

// A canvas as sharp as the screen, or sharper on paper; drawn in CSS pixels.
function canvas(width, height, attributes = {}) {
  const node = make("canvas", attributes);
  return { node, context: sized(node, width, height) };
}
function sized(node, width, height) {
  const ratio = onPaper() ? 2 : Math.min(devicePixelRatio || 1, 2);
  node.width = Math.round(width * ratio);
  node.height = Math.round(height * ratio);
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;
  const context = node.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";

// Text that fits: cut with an ellipsis.
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}

const missing = (panel) => make("p", { class: "note" }, `Not to be explored: ${panel.explorer.missing}.`);
