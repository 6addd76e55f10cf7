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
const dark = matchMedia("(prefers-color-scheme: dark)");
let wasDark = dark.matches;
dark.addEventListener("change", () => {
  if (onPaper() || dark.matches === wasDark) return; // to print is to prefer light for a while: no wish of the reader's
  wasDark = dark.matches;
  switchTheme(wasDark ? "dark" : "light");
});

// On paper: light, and drawn anew for its width before the browser takes its picture. At that moment the rules for
// print do not count yet, so they are made to, or there would be nothing to measure.
const printed = matchMedia("print");
const printRules = [...document.styleSheets[0].cssRules].find((rule) => rule.media?.mediaText === "print");
let before = null; // what to go back to
function paper(on) {
  if (on === onPaper()) return;
  if (on) before = { theme: document.documentElement.dataset.theme, y: scrollY, shut: [...document.querySelectorAll("details:not([open])")] };
  document.documentElement.toggleAttribute("data-paper", on);
  printRules.media.mediaText = on ? "all" : "print";
  switchTheme(on ? "light" : before.theme);
  for (const details of before.shut) details.open = on;
  if (!on) requestAnimationFrame(() => scrollTo(0, before.y));
}
addEventListener("beforeprint", () => paper(true));
addEventListener("afterprint", () => paper(false));
printed.addEventListener("change", () => paper(printed.matches)); // a preview that tells of nothing else

setTheme(isDark() ? "dark" : "light");
readState();
render();
