// The page itself: views, theme, and the way between the fragment and what is shown.

const views = { overview: overviewView, curves: curvesView, explorer: explorerView, grid: gridView, sparsity: sparsityView };
const mounted = new Set();

function render() {
  hideTip();
  const nav = document.getElementById("views");
  refill(nav, ...Object.entries(VIEWS).map(([view, title]) =>
    make("a", { href: fragment({ view }), "data-view": view, "data-key": view, tabindex: 0, "aria-current": view === state.view ? "page" : null }, title)));
  const current = nav.querySelector("[aria-current]"); // scrollIntoView would also move where Tab begins
  nav.scrollLeft = current.offsetLeft + current.offsetWidth - nav.clientWidth;
  for (const view of Object.keys(views)) document.getElementById(view).hidden = view !== state.view;
  const view = views[state.view];
  if (!mounted.has(state.view)) {
    view.mount(document.getElementById(state.view));
    mounted.add(state.view);
  }
  document.title = `${VIEWS[state.view]} · ${report.name} · Gossamer`;
  const now = fragment();
  Promise.resolve(view.update()).then(() => { if (now === fragment()) document.documentElement.dataset.ready = now; });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

addEventListener("hashchange", () => { readState(); render(); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
function switchTheme(theme) {
  setTheme(theme);
  if (mounted.delete("overview")) document.getElementById("overview").replaceChildren();
  render();
}
document.getElementById("theme").addEventListener("click", () => switchTheme(isDark() ? "light" : "dark"));
document.getElementById("skip").addEventListener("click", () => document.getElementById("main").focus());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => switchTheme(event.matches ? "dark" : "light"));

setTheme(isDark() ? "dark" : "light");
readState();
render();
