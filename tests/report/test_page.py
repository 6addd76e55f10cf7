"""The page in a real browser: what a reader sees and does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gossamer.comparison import explorer
from gossamer.comparison.run import results
from gossamer.comparison.stored import Stored
from gossamer.report.page import write_report
from tests.report.conftest import HOSTILE, Open, settled

VIEWS = ("overview", "curves", "explorer", "grid", "sparsity")
EDGE = """
(() => {  // the middle of the best dense edge, on the screen
  const { edges, base } = explorerView.drawing;
  const edge = edges.filter((one) => one.one.side === "dense").at(-1);
  base.scrollIntoView({ block: "center" });
  const [x, y] = along(edge.points, 0.5), box = base.getBoundingClientRect();
  return [box.left + x, box.top + y];
})()
"""


LAST_TOKEN = """
(() => {  // where the prompt's last token is written
  const { base, place } = explorerView.drawing;
  base.scrollIntoView({ block: "center" });
  const box = base.getBoundingClientRect();
  return [box.left + place.width / 2, box.top + place.y(place.n - 1)];
})()
"""
PROMPTS = "report.panels.find((panel) => panel.id === 'b-evil').explorer.prompts"
UNNAMED = """
[...document.querySelectorAll("button, a, input, select, canvas[role], svg[role], [role=region], [role=application]")]
  .filter((node) => node.offsetParent !== null || node instanceof SVGElement)
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
  .map((node) => node.outerHTML)
"""
PICTURES = "[...document.querySelectorAll('main > section:not([hidden]) canvas')].map((one) => one.toDataURL())"
CUT_OFF = """
(() => {  // what paper would not show whole
  const edge = document.body.getBoundingClientRect().right + 1;
  const cut = (node, { position, overflow }) => position === "sticky" || node.getBoundingClientRect().right > edge
    || (overflow !== "visible" && node.scrollHeight > node.clientHeight + 1);
  return [...document.querySelectorAll("main *:not(.unseen, option)")]
    .filter((node) => node.getClientRects().length && cut(node, getComputedStyle(node)))
    .map((node) => node.outerHTML.slice(0, 200));
})()
"""


def picture(page: Any, selector: str) -> str:
    return str(page.evaluate("(s) => document.querySelector(s).toDataURL()", selector))


def stored(run: Path, side: str = "dense", measure: str = "edges_sentence") -> Stored:
    return Stored.read(run / "panels" / "induction" / side / measure)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_in_silence(view: str, show: Open) -> None:
    page = show(f"#view={view}")
    assert page.locator(f"#{view} h1").is_visible()
    assert page.locator("main > section:visible").count() == 1


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_fits_a_phone(view: str, theme: str, show: Open) -> None:
    page = show(f"#view={view}", width=390, height=844, color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.dataset.theme") == theme


@pytest.mark.parametrize("view", VIEWS)
def test_a_hostile_prompt_is_text(view: str, show: Open) -> None:
    page = show(f"#view={view}&task=b-evil")
    page.wait_for_timeout(100)
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("[...document.images].filter((image) => !image.src.startsWith('blob:')).length") == 0
    assert page.locator("b >> text=evil").count() == 0


def test_the_hostile_words_are_shown_as_they_are(show: Open) -> None:
    page = show("#view=explorer&task=b-evil")
    row = page.evaluate(f"{PROMPTS}.findIndex((one) => one.sides.dense.after_clean[0][0].includes('script'))")
    page.locator("select[data-choice=prompt]").select_option(str(row))
    settled(page)
    assert HOSTILE in page.locator("[data-prompt=after_clean] .text").inner_text()
    assert HOSTILE in page.locator("[data-prompt=after_clean] .guess").first.inner_text()  # as a token
    assert "</script>" in page.locator("select[data-choice=prompt]").inner_text()
    assert "<b>evil&" in page.locator("select[data-choice=task]").inner_text()
    assert "<img src=x onerror=wind…" in page.locator(".sides").inner_text()
    point = page.evaluate(EDGE)
    page.mouse.move(*point)
    assert "looks at" in page.locator("#tip").inner_text()
    assert page.evaluate("window.harmed") is None


def test_the_policy_forbids_network_and_other_code(run: Path, browser: Any, listener: tuple[str, list[str]]) -> None:
    address, heard = listener
    page = browser.new_page()
    page.goto((run / "report.html").as_uri())
    assert page.evaluate(f"fetch('{address}').then(() => 'sent', () => 'refused')") == "refused"
    page.evaluate(
        """(address) => {
          const script = document.createElement("script");
          script.textContent = "window.harmed = 3";
          document.body.append(script);
          document.body.insertAdjacentHTML("beforeend", `<img src="${address}x.png" onerror="window.harmed = 4">`);
        }""",
        address,
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.harmed") is None
    assert heard == []
    page.close()


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server's address, and what it was asked for."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_error(404)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", heard
        server.shutdown()


def test_the_slider_changes_the_drawing_and_the_effect(show: Open, run: Path) -> None:
    page = show("#view=explorer&k=1")
    before = picture(page, "#circuit canvas")
    assert page.locator("#circuit").get_attribute("data-drawn") == "2"  # one edge a model
    page.locator("#k").fill("6")
    settled(page)
    assert picture(page, "#circuit canvas") != before
    k = stored(run).ks[6]
    assert page.locator("#k-now").inner_text() == str(k)
    assert f"k={k}" in page.url
    for side in ("dense", "sparse"):
        circuit = stored(run, side)
        own = (circuit.kept[0, 6] - circuit.kept[0, 0]) / (circuit.clean[0] - circuit.kept[0, 0])
        cells = page.locator(f"#effects [data-side={side}] td").all_inner_texts()
        assert cells[0] == f"{own:.2f}"
        assert cells[1].startswith(f"{circuit.effect[6]:.2f}")


@pytest.mark.parametrize(("name", "value"), [("shape", "layers"), ("colour", "head")])
def test_the_switches_of_the_drawing(name: str, value: str, show: Open) -> None:
    page = show("#view=explorer&k=24")
    before = picture(page, "#circuit canvas")
    page.locator(f"#explorer [data-choice={name}] input[value={value}]").check(force=True)
    settled(page)
    assert picture(page, "#circuit canvas") != before
    assert f"{name}={value}" in page.url


def test_the_switches_of_the_curves(show: Open) -> None:
    page = show("#view=curves")

    def lines() -> list[str]:
        settled(page)
        return list(page.eval_on_selector_all("#curves path.curve", "(all) => all.map((one) => one.getAttribute('d'))"))

    seen = [lines()]
    assert len(seen[0]) == 4  # two tasks, dense and sparse
    for name, value in [("scale", "log"), ("ranking", "dataset"), ("units", "edges"), ("controls", "on")]:
        page.locator(f"#curves [data-choice={name}] input[value={value}]").check(force=True)
        drawn = lines()
        assert drawn not in seen
        seen.append(drawn)
    assert len(seen[-1]) > 4
    assert page.locator("#curves [data-choice=ranking] input[value=dataset]").is_disabled()


def test_controls_wait_while_a_ranking_has_none(show: Open) -> None:
    page = show("#view=curves&ranking=dataset&controls=on")
    switch = page.locator("#curves [data-choice=controls] input")
    assert page.locator("#curves path.curve").count() == 4
    assert [one.is_disabled() for one in switch.all()] == [True, True]
    assert page.locator("#curves [data-choice=controls] input:checked").get_attribute("value") == "off"
    assert page.locator("#curves .hint").inner_text() == "Controls were measured with rankings of each prompt."
    assert "controls=on" in page.url
    page.locator("#curves [data-choice=ranking] input[value=sentence]").check(force=True)
    settled(page)
    assert page.locator("#curves path.curve").count() > 4
    assert [one.is_disabled() for one in switch.all()] == [False, False]
    assert page.locator("#curves [data-choice=controls] input:checked").get_attribute("value") == "on"


def test_pointing_at_a_curve_reads_it(show: Open, run: Path) -> None:
    page = show("#view=curves")
    box = page.locator("#curves svg[data-panel=induction]").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    said = page.locator("#tip").inner_text()
    k = int(said.split("k = ")[1].split()[0])
    effect = stored(run, measure="heads_sentence").effect[k]
    assert f"{effect:.2f} (" in said
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def test_pointing_at_an_edge_and_clicking_it(show: Open, run: Path) -> None:
    page = show("#view=explorer&k=2")
    page.mouse.move(*page.evaluate(EDGE))
    said = page.locator("#tip").inner_text().replace("\u2068", "").replace("\u2069", "")  # tokens stand isolated
    ranking = stored(run).scores()
    layer, head, query, key = ranking["index"][0, 0].tolist()
    words = [" " + word for word in stored(run).prompts[0]["clean"].split()]
    assert f"L{layer}H{head} of induction" in said
    assert f"“{words[query]}” ({query + 1}) looks at “{words[key]}” ({key + 1})" in said
    assert "attention 0.9" in said or "attention 1.0" in said
    assert f"score +{ranking['scores'][0, 0].item():.3g}"[:9] in said
    assert page.locator("#circuit").get_attribute("data-highlighted") == "1"
    page.mouse.click(*page.evaluate(EDGE))
    settled(page)
    assert page.locator("aside.head").get_attribute("data-head") == f"L{layer}H{head}"
    assert f"head=L{layer}H{head}" in page.url
    own = stored(run, measure="heads_dataset").head_order().tolist().index(4 * layer + head) + 1
    assert f"rank {own} of 8" in page.locator("aside.head").inner_text()


def test_pointing_at_a_token_shows_its_edges(show: Open) -> None:
    page = show("#view=explorer&k=24")
    page.mouse.move(*page.evaluate(LAST_TOKEN))
    assert "is looked at along" in page.locator("#tip").inner_text()
    assert int(page.locator("#circuit").get_attribute("data-highlighted")) > 0


def test_both_prompts_with_their_differences_and_predictions(show: Open, run: Path) -> None:
    page = show("#view=explorer&prompt=1")
    prompt = stored(run).prompts[1]
    for name in ("clean", "corrupted"):
        box = page.locator(f"[data-prompt=after_{name}]")
        other = prompt["corrupted" if name == "clean" else "clean"].split()
        differing = [word for word, instead in zip(prompt[name].split(), other) if word != instead]
        assert box.locator("mark").all_inner_texts() == differing
        assert box.locator(".guess").count() == 2
        assert box.locator(".guess").first.locator("tbody tr").count() == 5
    best = page.locator("[data-prompt=after_clean] .guess tr").first.inner_text()
    assert prompt["answers"][0].strip() in best
    assert "right" in best


def test_a_link_restores_the_state(show: Open, run: Path) -> None:
    k = stored(run).ks[5]
    fragment = f"#view=explorer&task=b-evil&shape=layers&colour=head&prompt=2&k={k}&head=L1H3"
    page = show(fragment)
    assert page.evaluate("location.hash") == fragment
    assert page.locator("select[data-choice=task]").input_value() == "b-evil"
    assert page.locator("select[data-choice=prompt]").input_value() == "2"
    assert page.locator("#k-now").inner_text() == str(k)
    assert page.locator("#circuit").get_attribute("data-shape") == "layers"
    assert page.locator("aside.head").get_attribute("data-head") == "L1H3"
    drawn = picture(page, "#circuit canvas")
    assert picture(show(fragment), "#circuit canvas") == drawn


def test_a_link_that_makes_no_sense_is_forgiven(show: Open) -> None:
    page = show("#view=constructor&task=__proto__&prompt=99&k=99999999&head=L99H99&zoom=1e9&shape=<b>")
    assert page.locator("#overview").is_visible()
    page = show("#view=explorer&prompt=99&k=99999999&head=L99H99")
    assert page.locator("#circuit").is_visible()


def test_the_grid_zooms_sorts_and_enlarges(show: Open) -> None:
    page = show("#view=grid&side=dense")
    board = page.locator(".scroll[data-side=dense]")
    before = picture(page, ".scroll canvas")
    page.locator("#grid [data-choice=sort] input[value=importance]").check(force=True)
    settled(page)
    assert board.get_attribute("data-first") in ("L0H1", "L1H2")  # the planted heads come first
    assert picture(page, ".scroll canvas") != before
    page.locator("#zoom").fill("120")
    settled(page)
    assert board.get_attribute("data-zoom") == "120"
    box = board.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 60)
    assert page.locator(".large").is_visible()
    assert page.locator(".large").get_attribute("data-head") == board.get_attribute("data-first")
    page.mouse.click(box["x"] + 40, box["y"] + 60)
    settled(page)
    assert f"head={board.get_attribute('data-first')}" in page.url


def test_sparsity_shows_the_same_head_twice(show: Open) -> None:
    page = show("#view=sparsity")
    assert page.locator(".cell").count() == 8
    page.locator(".cell[data-head=L0H3]").click()
    settled(page)
    assert page.locator(".beside").get_attribute("data-head") == "L0H3"
    assert page.locator(".beside canvas").count() == 2
    page.locator(".cell[data-head=L1H0]").hover()
    assert "of its edges are left" in page.locator("#tip").inner_text()


def test_the_keyboard_reaches_everything(show: Open) -> None:
    page = show("#view=overview")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the third view
    page.wait_for_url("**#view=explorer**")
    settled(page)
    page.locator("#k").focus()
    before = page.locator("#k-now").inner_text()
    page.keyboard.press("ArrowRight")
    settled(page)
    page.keyboard.press("ArrowRight")  # the slider keeps the focus
    settled(page)
    assert page.locator("#k-now").inner_text() != before
    assert page.evaluate("document.activeElement.id") == "k"
    page.locator("#explorer [data-choice=shape] input[value=arcs]").focus()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.locator("#circuit").get_attribute("data-shape") == "layers"
    page.locator(".tables .chip").first.focus()
    assert page.locator("#circuit").get_attribute("data-highlighted") == "1"

    page = show("#view=curves")
    page.locator("#curves svg[tabindex]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "1 heads" in page.locator("#live").inner_text()

    page = show("#view=grid")
    page.locator(".scroll").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".large").get_attribute("data-head") == "L0H1"
    assert page.locator("#live").inner_text().startswith("L0H1, rank")
    page.keyboard.press("Enter")
    settled(page)
    assert "head=L0H1" in page.url

    page = show("#view=sparsity&head=L0H1")
    page.locator(".heat").focus()
    page.keyboard.press("ArrowDown")
    settled(page)
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.locator(".beside").get_attribute("data-head") == "L1H2"


@pytest.mark.parametrize("view", ["explorer", "sparsity"])
def test_the_keyboard_reads_the_cells_of_a_pattern(view: str, show: Open, run: Path) -> None:
    page = show(f"#view={view}&head=L1H2")
    (one, *_) = explorer.read(run / "panels" / "induction" / "dense" / explorer.FILE)
    last = len(one.clean) - 1
    pattern = page.locator(f"#{view} [data-side=dense] canvas")
    assert pattern.get_attribute("tabindex") == "0"
    assert "Arrow keys" in pattern.get_attribute("aria-label")
    bare = pattern.evaluate("(node) => node.toDataURL()")
    pattern.focus()
    seen = {bare}
    for pressed, query, key in [
        ("ArrowRight", 0, 0),  # the first key shows the first cell
        ("ArrowRight", 0, 0),  # no key comes after its query
        ("ArrowDown", 1, 0),
        ("PageDown", last, 0),  # at most ten rows
        ("End", last, last),
        ("ArrowLeft", last, last - 1),
        ("ArrowUp", last - 1, last - 1),
        ("ArrowUp", last - 2, last - 2),
        ("Home", last - 2, 0),
        ("Control+End", last, last),
        ("Control+Home", 0, 0),
    ]:
        page.keyboard.press(pressed)
        weight = (one.patterns[1, 2, query * (query + 1) // 2 + key] / 255) ** 2
        shown = "0" if weight == 0 else "< 0.001" if weight < 0.001 else f"{weight:.3f}"
        words = f"“{one.clean[query]}” ({query + 1}) looks at “{one.clean[key]}” ({key + 1})"
        told = page.locator("#tip").inner_text().replace("\u2068", "").replace("\u2069", "")
        assert told == f"L1H2\n{words}\nattention {shown}"
        said = page.locator("#live").text_content().replace("\u2068", "").replace("\u2069", "")
        assert said == f"{words}, attention {shown}"
        seen.add(pattern.evaluate("(node) => node.toDataURL()"))
    assert len(seen) == 9  # none, and a ring around each cell
    page.keyboard.press("Tab")
    assert page.locator("#tip").is_hidden()
    assert pattern.evaluate("(node) => node.toDataURL()") == bare


@pytest.mark.parametrize("view", ["curves", "explorer", "grid", "sparsity"])
def test_escape_closes_what_hovers(view: str, show: Open) -> None:
    page = show(f"#view={view}")
    popup = page.locator(".large" if view == "grid" else "#tip")
    if view == "explorer":
        x, y = page.evaluate(EDGE)
    else:
        target = {"curves": "#curves svg[tabindex]", "grid": ".scroll", "sparsity": ".beside canvas"}[view]
        box = page.locator(target).first.bounding_box()
        x, y = box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.7
    page.mouse.move(x, y)
    assert popup.is_visible()
    page.locator("#theme").focus()
    page.keyboard.press("Escape")
    assert popup.is_hidden()
    page.mouse.move(x, y)  # told again of where it is
    page.mouse.down()
    assert popup.is_hidden()
    page.mouse.move(x + 2, y)
    assert popup.is_visible()


def test_what_a_screen_reader_is_told(show: Open) -> None:
    for view in VIEWS:
        assert show(f"#view={view}").evaluate(UNNAMED) == []
    page = show("#view=explorer")
    assert page.locator("nav [aria-current=page]").inner_text() == "Circuit explorer"


def test_downloads(show: Open, run: Path) -> None:
    page = show("#view=overview")
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        with page.expect_download() as saved:
            page.locator(f"[data-save='heads_sentence.{kind}']").click()
        content = Path(saved.value.path()).read_bytes()
        assert content.startswith(start)
        assert content == (run / "figures" / f"heads_sentence.{kind}").read_bytes()
    with page.expect_download() as saved:
        page.locator("[data-save='heads_sentence.csv']").click()
    rows = Path(saved.value.path()).read_text().splitlines()
    first = results(run)[0].circuits["heads_sentence"][0]
    assert rows[0] == "task,curve,k,explained_effect,low,high"
    assert [float(row.split(",")[3]) for row in rows[1 : 1 + len(first.ks)]] == pytest.approx(first.effect, abs=1e-5)
    with page.expect_download() as saved:
        page.locator("[data-save='grid_b-evil.csv']").click()
    assert "model,layer,head,query,key" in Path(saved.value.path()).read_text()


def test_the_theme_can_be_switched(show: Open) -> None:
    page = show("#view=grid", color_scheme="light")
    before = picture(page, ".scroll canvas")
    page.locator("#theme").click()
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert picture(page, ".scroll canvas") != before


@pytest.mark.parametrize("view", VIEWS)
def test_paper_is_light_and_cuts_nothing_off(view: str, show: Open) -> None:
    fragment = f"#view={view}&task=b-evil&k=24"
    page = show(fragment, color_scheme="dark")
    before = page.evaluate(PICTURES)
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.drawn = {PICTURES}; }})")
    page.pdf()
    assert page.evaluate(PICTURES) == before
    page.emulate_media(media="print", color_scheme="dark")
    page.locator("html[data-paper]").wait_for(state="attached")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for selector in (".bar", "#tip", ".large", "input[type=range]"):
        assert all(one.is_hidden() for one in page.locator(selector).all())
    assert page.evaluate(CUT_OFF) == []
    on_paper = page.evaluate(PICTURES)
    assert page.evaluate("window.drawn") == on_paper
    light = show(fragment, color_scheme="light")
    light.emulate_media(media="print")
    light.locator("html[data-paper]").wait_for(state="attached")
    assert light.evaluate(PICTURES) == on_paper
    page.emulate_media(media="screen", color_scheme="dark")
    page.locator("html:not([data-paper])[data-theme=dark]").wait_for(state="attached")
    assert page.evaluate(PICTURES) == before


def test_a_chosen_theme_outlives_printing(show: Open) -> None:
    page = show("#view=curves", color_scheme="dark")
    page.locator("#theme").click()

    def changed(**media: str) -> str:
        page.emulate_media(**media)
        page.wait_for_timeout(100)  # the page hears of it with the next frame
        return str(page.evaluate("document.documentElement.dataset.theme"))

    for media in ({"media": "print"}, {"color_scheme": "light"}, {"media": "screen"}, {"color_scheme": "dark"}):
        assert changed(**media) == "light"  # a browser prefers light while it prints
    changed(color_scheme="light")
    assert changed(color_scheme="dark") == "dark"  # the reader's own wish


def test_paper_shows_every_head(show: Open) -> None:
    page = show("#view=grid&side=dense&zoom=200", width=500, height=400)
    page.emulate_media(media="print")
    page.locator("html[data-paper]").wait_for(state="attached")
    columns = int(page.locator(".scroll").get_attribute("data-columns"))
    assert page.locator(".scroll canvas").count() == -(-8 // columns)


def test_the_tables_of_the_controls(show: Open, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    numbers = json.loads((copy / "controls.json").read_text())
    shares = ("top1_agreement", "edges", "edges_without_first", "edges_without_first_and_diagonal")
    numbers["models"] = {HOSTILE: dict.fromkeys(("loss", "base_loss", "kl", *shares), 0.5)}
    (copy / "controls.json").write_text(json.dumps(numbers))
    write_report(copy)
    page = show("#view=overview", of=copy)
    assert page.locator("#controls h2").inner_text() == "Controls"
    assert page.locator("#controls table").first.is_hidden()
    page.locator("#controls summary").click()
    first, *others = page.locator("#controls table").all()
    assert HOSTILE in first.inner_text()
    assert page.evaluate("window.harmed") is None
    written = (copy / "controls.md").read_text()
    assert [one.locator("caption").inner_text() for one in others] == re.findall("^## (.*)", written, re.MULTILINE)
    for row in (row for one in others for row in one.locator("tbody tr").all()):
        assert f"| {' | '.join(row.locator('th, td').all_inner_texts())} |" in written
    page.locator("#theme").click()
    settled(page)
    assert first.is_visible()  # stays open in the other theme

    (copy / "controls.json").write_text('{"tasks": []}')
    write_report(copy)
    assert "gossamer figures" in show("#view=overview", of=copy).locator("#controls").inner_text()
    (copy / "controls.json").unlink()
    write_report(copy)
    assert show("#view=overview", of=copy).locator("#controls").count() == 0


def test_a_run_without_patterns_still_opens(show: Open, run: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(run, old)
    for path in old.rglob("explorer.safetensors"):
        path.unlink()
    write_report(old)
    for view in ("explorer", "grid", "sparsity"):
        page = show(f"#view={view}", of=old)
        assert "give its command again" in page.locator(f"#{view}").inner_text()
    assert show("#view=overview", of=old).locator("#multipliers").is_visible()


@pytest.mark.parametrize(("view", "slider", "now"), [("explorer", "#k", "state.k"), ("grid", "#zoom", "state.zoom")])
def test_a_slider_can_be_dragged_all_the_way(view: str, slider: str, now: str, show: Open) -> None:
    page = show(f"#view={view}")
    page.locator(slider).scroll_into_view_if_needed()
    box = page.locator(slider).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, y)
    page.mouse.down()
    seen = []
    for part in range(1, 9):
        page.mouse.move(box["x"] + box["width"] * part / 8 - 2, y)
        seen.append(page.evaluate(now))
    page.mouse.up()
    settled(page)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert float(page.locator(slider).input_value()) == float(page.locator(slider).get_attribute("max"))


def test_a_head_keeps_the_focus_when_it_is_chosen(show: Open) -> None:
    page = show("#view=explorer&k=2")
    chip = page.locator("#explorer .chips button").first
    chip.focus()
    page.keyboard.press("Enter")
    settled(page)
    assert page.evaluate("document.activeElement.className") == "chip"


def test_a_damaged_explorer_file_costs_the_explorer_only(run: Path, tmp_path: Path, show: Open) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "panels" / "induction" / "dense" / "explorer.safetensors").write_bytes(b"broken")
    write_report(copy)
    page = show("#view=explorer", of=copy)
    assert "remove that file" in page.locator("#explorer .note").inner_text()
    assert show("#view=curves", of=copy).locator("#curves svg").count() > 0


def test_text_that_turns_direction_turns_no_other(show: Open) -> None:
    page = show()
    assert page.evaluate('visible("a\\u202eb\\u2028c\\u0000\\n")') == "a\ufffdb\ufffdc\ufffd⏎"


def test_tables_stay_scrolled_when_a_head_is_chosen(show: Open, run: Path) -> None:
    page = show(f"#view=explorer&k={stored(run).ks[-1]}")
    table = page.locator("[data-key=edges-dense]")
    before = table.evaluate("(node) => { node.scrollTop = 40; return node.scrollTop; }")
    assert before > 0
    table.locator("button.chip").last.evaluate("(node) => node.click()")
    settled(page)
    assert table.evaluate("(node) => node.scrollTop") == before


def test_marks_after_the_corrupted_prompt_say_whose_answers_they_are(show: Open) -> None:
    page = show("#view=explorer")
    marks = page.locator("[data-prompt=after_corrupted] td.kind").all_inner_texts()
    assert all(not mark or mark.endswith("for clean") for mark in marks)
    assert not any("for clean" in mark for mark in page.locator("[data-prompt=after_clean] td.kind").all_inner_texts())


def test_no_more_edges_are_told_of_than_a_prompt_has(show: Open, run: Path) -> None:
    page = show("#view=explorer&task=b-evil")
    one = "{ layers: 2, heads: 4, tokens: [1, 2, 3], edges: 20 }"
    counts = page.evaluate(f"[reach({one}, 1000), reach({one}, 20)]")
    assert counts == [{"all": 48, "cut": True}, {"all": 20, "cut": False}]


def test_a_head_that_scores_nothing_has_no_rank(show: Open) -> None:
    page = show("#view=grid")
    none = "report.panels[0].heads.dense.score[0] = 0, rankText(report.panels[0], 'dense', { layer: 0, head: 0 })"
    assert "no rank" in page.evaluate(none)


def test_controls_are_read_out_where_they_were_not_measured_too(show: Open) -> None:
    page = show("#view=curves&controls=on&units=edges")
    page.evaluate(
        "for (const one of Object.values(report.panels[0].controls.edges)) if (one.k) one.k = one.k.map((k) => k + 0.5)"
    )
    page.evaluate("render()")
    chart = page.locator("svg[data-panel]").first
    chart.focus()
    chart.press("End")
    assert "not measured at this k" in page.locator("#tip").inner_text()
