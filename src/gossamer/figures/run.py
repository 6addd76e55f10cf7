"""Every figure of a comparison, from its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from gossamer.comparison.controls import FOLDER as CONTROLS
from gossamer.comparison.multiplier import MEASURES, Multiplier
from gossamer.comparison.run import Result
from gossamer.comparison.trained import read_training
from gossamer.figures.controls import draw_controls
from gossamer.figures.grid import draw_grid
from gossamer.figures.panels import Drawn, draw_panels, model_label, pair_colours
from gossamer.figures.style import KINDS, save
from gossamer.figures.training import draw_trainings

FOLDER = "figures"


def draw_run(run: Path, results: Sequence[Result], table: Sequence[Multiplier]) -> list[str]:
    """Draw them into RUN/figures, each as .png, .pdf and .svg; their names."""
    colours = pair_colours([result.panel.dense for result in results])
    names = [pair_names(result) for result in results]
    figures: dict[str, Callable[[], Figure]] = {}
    for measure in MEASURES:
        found = [entry for entry in table if entry.measure == measure]
        panels = [
            Drawn(result.title, pair, result.circuits[measure], entry, colour)
            for result, pair, entry, colour in zip(results, names, found, colours, strict=True)
        ]
        figures[measure] = partial(draw_panels, panels)
    for result, pair in zip(results, names, strict=True):
        figures[f"grid_{result.folder.name}"] = partial(draw_grid, *result.patterns(), pair)
    if any((result.folder / CONTROLS).exists() for result in results):
        figures["controls"] = partial(draw_controls, results, colours)
    if trainings := read_training(run):
        figures["training"] = partial(draw_trainings, trainings)
    for name, draw in figures.items():
        save(draw, *(run / FOLDER / f"{name}.{kind}" for kind in KINDS))
    return list(figures)


def pair_names(result: Result) -> tuple[str, str]:
    dense = model_label(result.panel.dense)
    return dense, f"Sparse {dense}"
