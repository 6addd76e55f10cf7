"""The measured tables and figures in these pages, made again from the runs they came from:

python docs/tables.py docs/results.md docs/controls.md

Between `<!-- TABLE RUN -->` and `<!-- end -->` stands what is of a run's folder, TABLE one of

    training      loss and edges of a post-trained model
    trace         loss against edges while it was trained
    tasks         how well a dense and a sparse model do the tasks of a comparison, and how long their circuits took
    multipliers   k90 of a dense and a sparse model, and their ratio; of a fine-tuned control too, if there is one
    controls      the controls of a comparison
    choices       its multipliers under every choice, and how far estimates rank heads from exact patching (--all)
    paper         multipliers of arXiv 2512.05865, beside those of one or more comparisons (RUN,RUN)

A picture after `<!-- figure: PATH -->` is a copy of that file of a run, and is copied again.
A run that is not there or not finished leaves its table as it was, and is named.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from gossamer.comparison.multiplier import MEASURES
from gossamer.comparison.run import results
from gossamer.comparison.tables import Table, markdown, tables
from gossamer.errors import GossamerError
from gossamer.files import write_text, write_whole

PAPER = {  # greater-than and ioi: GPT-2; docstring and ioi-long: OLMo-7B
    "heads_sentence": {"greater-than": 4.5, "ioi": 2.2, "docstring": 2.2, "ioi-long": 1.4},
    "edges_sentence": {"greater-than": 97.0, "ioi": 42.8, "docstring": 8.6, "ioi-long": 5.4},
    "heads_dataset": {"greater-than": 0.6, "ioi": 2.0, "docstring": 1.3, "ioi-long": 1.6},
}
PLACE = re.compile(r"(<!-- (\w+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"<!-- figure: (\S+) -->\n!\[[^]]*\]\(([^)]+)\)")
TRACED = 12  # rows at most


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def training(run: Path) -> list[Table]:
    result = read(run / "sparsify.json")
    found, settings = result["evaluation"], result["settings"]
    took = result["cost"]
    cells = {
        "held-out loss (base)": f"{found['loss']:.4f} ({found['base_loss']:.4f})",
        "bound": f"{result['tau']:.4f}",
        "open edges": f"{found['edges']:.3%}",
        "without first token, nor diagonal": f"{found['edges_without_first_and_diagonal']:.3%}",
        "a query": f"{found['edges_per_query']:.2f}",
        "KL to the base": f"{found['kl']:.4f}",
        "same most likely token": f"{found['top1_agreement']:.1%}",
        "steps (kept)": f"{settings['steps']:,} ({result['kept_step']:,})",
        "heads shut": f"{len(found['shut_heads'])}",
        "minutes in steps": f"{took['seconds'] / 60:.0f}",
        "peak memory": "-" if took["peak_memory"] is None else f"{took['peak_memory'] / 1e9:.1f} GB",
    }
    return [Table("", ["", ""], [list(row) for row in cells.items()])]


def trace(run: Path) -> list[Table]:
    read(run / "sparsify.json")  # not there while the run lasts
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    judged = [row for row in rows if "held_out_loss" in row]
    some = judged[:: -(-len(judged) // TRACED)]
    some += [] if some[-1] is judged[-1] else [judged[-1]]
    cells = [[f"{row['step']:,}", f"{row['held_out_loss']:.4f}", f"{row['edges']:.3%}"] for row in some]
    return [Table("", ["step", "held-out loss", "open edges"], cells)]


def ends(interval: list[float | None], form: Callable[[float], str]) -> str:
    return " to ".join("not reached" if end is None else form(end) for end in interval)


def ratio(row: dict[str, Any]) -> str:
    if row["multiplier"] is None:
        return "-"
    return f"**{row['multiplier']:.2f}x** ({ends(row['multiplier_interval'], lambda end: f'{end:.2f}')})"


def size(k90: int | None, interval: list[float | None]) -> str:
    return "not reached" if k90 is None else f"{k90:,} ({ends(interval, lambda end: f'{end:,.0f}')})"


def multipliers(run: Path) -> list[Table]:
    rows = read(run / "multipliers.json")
    checked = read(run / "controls.json")["tasks"] if (run / "controls.json").exists() else {}
    tuned = {
        (result.panel.task, f"{units}_sentence"): control
        for result in results(run)
        for units, curves in checked.get(result.folder.name, {}).get("baselines", {}).items()
        if "k90" in (control := curves.get("tuned", {}))
    }

    def found(row: dict[str, Any], side: str) -> str:
        if side != "tuned":
            return size(row[f"{side}_k90"], row[f"{side}_k90_interval"])
        control = tuned.get((row["task"], row["measure"]))
        return "-" if control is None else size(control["k90"], control["k90_interval"])

    heads = {"dense": "dense k90", **({"tuned": "fine-tuned k90"} if tuned else {}), "sparse": "sparse k90"}
    named = {measure: f"{units}, {ranking}" for measure, (units, ranking) in MEASURES.items()}
    cells = [[row["task"], named[row["measure"]], *(found(row, side) for side in heads), ratio(row)] for row in rows]
    return [Table("", ["task", "units, ranking", *heads.values(), "multiplier"], cells)]


def tasks(run: Path) -> list[Table]:
    cells = []
    for result in results(run):
        sides = [[circuit.summary for circuit in circuits] for circuits in zip(*result.circuits.values())]
        cells.append(
            [
                result.panel.task,
                *(f"{circuits[0]['accuracy']:.0%}" for circuits in sides),
                *(f"{circuits[0]['effect']:.3g} ± {circuits[0]['effect_standard_error']:.2g}" for circuits in sides),
                *(f"{sum(circuit['seconds'] for circuit in circuits) / 60:.1f}" for circuits in sides),
            ]
        )
    columns = [f"{what}, {side}" for what in ("right", "effect", "minutes") for side in ("dense", "sparse")]
    return [Table("", ["task", *columns], cells)]


def controls(run: Path) -> list[Table]:
    return tables(read(run / "controls.json"))


def choices(run: Path) -> list[Table]:
    frame, agreed = (pd.read_csv(run / name) for name in ("choices.csv", "agreement.csv"))
    found = {tuple(row[:6]): row[6:] for row in frame.itertuples(index=False)}  # task and choice -> numbers
    tasks, replacements = frame["task"].unique(), frame["replace"].unique()

    def cell(task: str, choice: tuple[str, ...], replacement: str) -> str:
        _dense, _sparse, value, *interval = found[task, *choice, replacement]
        low, high = (None if math.isnan(end) else end for end in interval)
        return "-" if math.isnan(value) else f"{value:.2f} ({ends([low, high], lambda end: f'{end:.2f}')})"

    rows = [
        [", ".join(choice), *(cell(task, choice, replacement) for task in tasks for replacement in replacements)]
        for choice in dict.fromkeys(tuple(key[1:5]) for key in found)
    ]
    heads = [f"{task}, {replacement}" for task in tasks for replacement in replacements]
    estimates = [
        [*map(str, row[:4]), f"{row[4]:.2f}", f"{row[6]:.0%} of {row[5]}"] for row in agreed.itertuples(index=False)
    ]
    against = ["task", "model", "replacement", "estimate", "Spearman with exact", "same among those needed"]
    return [
        Table("Multipliers under every choice", ["units, ranking, importance, sign", *heads], rows),
        Table("How far estimates rank heads from exact patching", against, estimates),
    ]


def paper(*runs: Path) -> list[Table]:
    measured = [{(row["task"], row["measure"]): ratio(row) for row in read(run / "multipliers.json")} for run in runs]
    cells = [
        [f"{units}, {ranking}", task, f"{published:.1f}x", *(found.get((task, measure), "") for found in measured)]
        for measure, (units, ranking) in MEASURES.items()
        for task, published in PAPER[measure].items()
    ]
    return [Table("", ["units, ranking", "task", "paper", *(run.name for run in runs)], cells)]


KINDS: dict[str, Callable[..., list[Table]]] = {
    "training": training,
    "trace": trace,
    "tasks": tasks,
    "multipliers": multipliers,
    "controls": controls,
    "choices": choices,
    "paper": paper,
}


def fill(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        begin, kind, named, end = found.groups()
        runs = [Path(run) for run in named.split(",")]
        try:
            made = KINDS[kind](*runs)
        except (FileNotFoundError, GossamerError) as error:
            print(f"the {kind} of {named} stays as it is: {error}")
            return found[0]
        return f"{begin}\n{markdown(made, level=3)}\n{end}"

    return PLACE.sub(replaced, text)


def copy_figures(text: str, folder: Path) -> None:
    for made, shown in FIGURE.findall(text):
        try:
            write_whole(folder / shown, partial(shutil.copyfile, made))
        except FileNotFoundError:
            print(f"{made}: no such file, {shown} stays as it is")


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        content = fill(page.read_text(encoding="utf-8"))
        write_text(page, content)
        copy_figures(content, page.parent)
