"""The measured tables in these pages, made again from the runs they came from:

python docs/tables.py docs/results.md docs/controls.md

Between `<!-- TABLE RUN -->` and `<!-- end -->` stands a table of a run's folder, TABLE one of

    training      loss and edges of a post-trained model
    trace         loss against edges while it was trained
    multipliers   k90 of a dense and a sparse model, and their ratio
    controls      the controls of a comparison

A run that is not there leaves its table as it was, and is named.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.comparison.multiplier import MEASURES
from gossamer.comparison.tables import Table, markdown, tables
from gossamer.files import write_text

PLACE = re.compile(r"(<!-- (\w+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TRACED = 12  # rows at most


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def training(run: Path) -> list[Table]:
    result = read(run / "sparsify.json")
    found, settings = result["evaluation"], result["settings"]
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    minutes = sum(row.get("seconds", 0) for row in rows) / 60
    cells = {
        "held-out loss (base)": f"{found['loss']:.4f} ({found['base_loss']:.4f})",
        "bound": f"{result['tau']:.4f}",
        "open edges": f"{found['edges']:.3%}",
        "without first token, nor diagonal": f"{found['edges_without_first_and_diagonal']:.3%}",
        "a query": f"{found['edges_per_query']:.2f}",
        "KL to the base": f"{found['kl']:.4f}",
        "same most likely token": f"{found['top1_agreement']:.1%}",
        "steps (kept)": f"{settings['steps']:,} ({result['kept_step']:,})",
        "minutes in steps": f"{minutes:.0f}",
    }
    return [Table("", list(cells), [list(cells.values())])]


def trace(run: Path) -> list[Table]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    judged = [row for row in rows if "held_out_loss" in row]
    some = judged[:: -(-len(judged) // TRACED)]
    some += [] if some[-1] is judged[-1] else [judged[-1]]
    cells = [[f"{row['step']:,}", f"{row['held_out_loss']:.4f}", f"{row['edges']:.3%}"] for row in some]
    return [Table("", ["step", "held-out loss", "open edges"], cells)]


def multipliers(run: Path) -> list[Table]:
    rows = read(run / "multipliers.json")

    def ends(interval: list[float | None], form: Callable[[float], str]) -> str:
        return " to ".join("not reached" if end is None else form(end) for end in interval)

    def size(row: dict[str, Any], side: str) -> str:
        k = row[f"{side}_k90"]
        return "not reached" if k is None else f"{k:,} ({ends(row[f'{side}_k90_interval'], lambda end: f'{end:,.0f}')})"

    def ratio(row: dict[str, Any]) -> str:
        if row["multiplier"] is None:
            return "-"
        return f"**{row['multiplier']:.2f}x** ({ends(row['multiplier_interval'], lambda end: f'{end:.2f}')})"

    named = {measure: f"{units}, {ranking}" for measure, (units, ranking) in MEASURES.items()}
    cells = [[row["task"], named[row["measure"]], size(row, "dense"), size(row, "sparse"), ratio(row)] for row in rows]
    return [Table("", ["task", "units, ranking", "dense k90", "sparse k90", "multiplier"], cells)]


def controls(run: Path) -> list[Table]:
    return tables(read(run / "controls.json"))


KINDS = {"training": training, "trace": trace, "multipliers": multipliers, "controls": controls}


def fill(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        begin, kind, run, end = found.groups()
        if not Path(run).exists():
            print(f"{run}: no such run, its {kind} stay as they are")
            return found[0]
        return f"{begin}\n{markdown(KINDS[kind](Path(run)), level=3)}\n{end}"

    return PLACE.sub(replaced, text)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        write_text(page, fill(page.read_text(encoding="utf-8")))
