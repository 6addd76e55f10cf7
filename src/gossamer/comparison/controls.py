"""What a sceptic asks of a comparison, measured for each of its tasks.

Circuits under RUN/panels/TASK/controls/, in the format of any circuit:

    random-SIDE-UNITS       the same model, ranked by chance
    nonsense-SIDE-UNITS     the same prompts with the answers of other prompts
    untrained-UNITS         the dense model's architecture with random weights
    tuned-UNITS             the dense model fine-tuned for as long with no penalty, where there is one

and SIDE.json: held-out ranking, rephrasing, completeness, minimality, standard scores; for the dense model also what
the sparse one's heads explain in it, for the sparse one also what its shut edges leak.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.attention import gating
from gossamer.circuits.circuit import SUMMARY, Circuit
from gossamer.circuits.discover import NoEffect, circuit
from gossamer.circuits.parts import Parts
from gossamer.comparison.jobs import Bar, Shared, save_circuit
from gossamer.comparison.scores import chance_jaccard, jaccard, mib_scores
from gossamer.comparison.stored import Stored
from gossamer.comparison.subsets import completeness_and_minimality, explained
from gossamer.files import write_text
from gossamer.models import Model, cast, move, wrap
from gossamer.tasks.pair import Prompts

FOLDER = "controls"
UNITS = ("heads", "edges")
NO_EFFECT = "no-effect.json"  # in place of a circuit, where there is nothing to explain


def controlled(panel: Path, side: str) -> bool:
    """Whether all controls of one model are there."""
    names = [f"random-{side}", f"nonsense-{side}", *(["untrained"] if side == "dense" else [])]
    return (panel / FOLDER / f"{side}.json").exists() and all(measured(panel, name) for name in names)


def measured(panel: Path, name: str) -> bool:
    """Whether a control's circuits are there, or it is known that there are none."""
    folders = [panel / FOLDER / f"{name}-{units}" for units in UNITS]
    return all((folder / SUMMARY).exists() or (folder / NO_EFFECT).exists() for folder in folders)


def control_side(
    model: Model, side: str, prompts: Prompts, panel: Path, settings: dict[str, Any], bar: Bar, shared: Shared
) -> None:
    """All controls of one model on one task; what is done already is not done again."""
    here, shuffled_shared, blank_shared = panel / FOLDER, Shared(), Shared()
    asked = {**settings, "ranking": "sentence", "sizes": "sketch"}
    nonsense = shuffled(prompts, settings["seed"])
    for units in reversed(UNITS):  # edges first: see Shared
        by_chance = {**asked, "ranking": "random", "units": units}
        try_circuit(model, prompts, here / f"random-{side}-{units}", by_chance, bar, shared)
        try_circuit(model, nonsense, here / f"nonsense-{side}-{units}", {**asked, "units": units}, bar, shuffled_shared)
    if side == "dense":
        blank = untrained(model, settings["seed"])
        for units in reversed(UNITS):  # edges first: see Shared
            try_circuit(blank, prompts, here / f"untrained-{units}", {**asked, "units": units}, bar, blank_shared)
    if not (here / f"{side}.json").exists():
        with bar(f"{prompts.task}, {model.name}: held-out ranking, completeness, minimality"):
            found = checks(model, side, prompts, panel, settings)
        write_text(here / f"{side}.json", json.dumps(found, indent=2) + "\n")


def control_tuned(model: Model, prompts: Prompts, panel: Path, settings: dict[str, Any], bar: Bar) -> None:
    """The dense model after as much training with no penalty: is it the sparsity, or the training?"""
    shared = Shared()
    for units in reversed(UNITS):  # edges first: see Shared
        asked = {**settings, "ranking": "sentence", "units": units, "sizes": "few"}
        try_circuit(model, prompts, panel / FOLDER / f"tuned-{units}", asked, bar, shared)


def try_circuit(
    model: Model, prompts: Prompts, folder: Path, settings: dict[str, Any], bar: Bar, shared: Shared
) -> None:
    """A circuit where there may be nothing to explain."""
    if (folder / NO_EFFECT).exists():
        return
    try:
        save_circuit(model, prompts, folder, settings, f"{prompts.task}, {folder.name}", bar, shared)
    except NoEffect as error:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / NO_EFFECT, json.dumps({"reason": str(error), "weights": model.fingerprint()}) + "\n")


def shuffled(prompts: Prompts, seed: int) -> Prompts:
    """Every prompt with the answers of another: there is nothing to find."""
    order = list(range(len(prompts)))
    Random(f"nonsense {seed}").shuffle(order)
    givers = dict(zip(order, order[1:] + order[:1]))  # a cycle: nobody keeps its own
    pairs = []
    for row, pair in enumerate(prompts.pairs):
        other = prompts.pairs[givers[row]]
        text = replace(pair.pair, answers=other.pair.answers, wrong=other.pair.wrong)
        pairs.append(replace(pair, pair=text, answers=other.answers, wrong=other.wrong))
    return replace(prompts, pairs=tuple(pairs), task=f"{prompts.task}, answers shuffled")


def untrained(model: Model, seed: int) -> Model:
    """The same architecture before training."""
    torch.manual_seed(seed)
    hf = type(model.hf)(model.hf.config)
    cast(hf, model.hf.dtype)
    move(hf, str(model.device))
    return wrap(hf.eval(), model.tokenizer, name=f"{model.name}, untrained")


def checks(model: Model, side: str, prompts: Prompts, panel: Path, settings: dict[str, Any]) -> dict[str, Any]:
    dataset = Stored.read(panel / side / "heads_dataset")
    scores = dataset.scores()["scores"].double()  # (prompt, layer, head)
    needed = dataset.best_heads(dataset.total if dataset.k90 is None else dataset.k90)
    found: dict[str, Any] = {
        "held_out_ranking": elsewhere(model, prompts, scores, *halves(len(prompts)), settings),
        "rephrasing": rephrased(model, prompts, scores, settings),
        "circuit": completeness_and_minimality(model, prompts, needed, settings["replace"]),
        "standard_scores": {
            measure: mib_scores(stored.ks, stored.effect, stored.total)
            for measure in ("heads_sentence", "edges_sentence", "heads_dataset")
            for stored in [Stored.read(panel / side / measure)]
        },
    }
    if side == "dense":
        other = Stored.read(panel / "sparse" / "heads_dataset")
        theirs = other.best_heads(other.total if other.k90 is None else other.k90)
        sets = [theirs, dataset.best_heads(len(theirs))]
        own, as_many = explained(model, prompts, sets, settings["replace"]).tolist()
        found["sparse_heads_in_dense"] = {
            "heads": len(theirs),
            "explained_effect": own,
            "explained_effect_of_as_many_of_its_own": as_many,
        }
        found["overlap"] = {
            "dense_heads": len(needed),
            "sparse_heads": len(theirs),
            "jaccard": jaccard(needed, theirs),
            "by_chance": chance_jaccard(len(needed), len(theirs), dataset.total),
        }
    elif model.sparse:
        found["leak"] = leak(model, prompts, Stored.read(panel / side / "heads_sentence"), settings)
    return found


def halves(prompts: int) -> tuple[Sequence[int], Sequence[int]]:
    return range(0, prompts, 2), range(1, prompts, 2)


def elsewhere(
    model: Model,
    prompts: Prompts,
    scores: Tensor,
    ranked_on: Sequence[int],
    measured_on: Sequence[int],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """One ranking of heads, by their scores (prompt, layer, head) on some prompts, judged on others; beside it that of
    the others themselves."""
    if not len(ranked_on) or not len(measured_on):
        return {"reason": "too few prompts"}
    given = {"sign": settings["sign"], "replace": settings["replace"], "seed": settings["seed"], "sizes": "few"}
    given |= {"units": "heads", "ranking": "given"}
    judged, shared = prompts.some(measured_on), Shared()

    def by(ranking: Sequence[int]) -> Circuit:
        parts = Parts()
        shared.give(parts, given)
        found = circuit(model, judged, scores=scores[list(ranking)].mean(dim=0), parts=parts, **given)
        shared.take(parts, given)
        return found

    try:
        own, moved = by(measured_on), by(ranked_on)
    except NoEffect as error:
        return {"reason": str(error)}
    k = own.k90
    return {
        "ranked_on": len(ranked_on),
        "measured_on": len(measured_on),
        "k90_own_ranking": k,
        "k90_other_ranking": moved.k90,
        "explained_effect_at_own_k90": None if k is None else float(np.interp(k, moved.ks, moved.explained_effect)),
    }


def rephrased(model: Model, prompts: Prompts, scores: Tensor, settings: dict[str, Any]) -> dict[str, Any]:
    """Ranked on some wordings, judged on the others."""
    own = [pair.pair.template.split("-")[0] for pair in prompts.pairs]  # "3-ABBA" is wording 3
    wordings = sorted(set(own))
    if len(wordings) < 2:
        return {"reason": "the task has one wording"}
    first = set(wordings[::2])
    inside = [row for row, wording in enumerate(own) if wording in first]
    outside = [row for row, wording in enumerate(own) if wording not in first]
    return {"wordings": len(wordings), **elsewhere(model, prompts, scores, inside, outside, settings)}


def leak(model: Model, prompts: Prompts, as_trained: Stored, settings: dict[str, Any]) -> dict[str, Any]:
    """The circuit, and that with the softmax over the open keys only, so that shut edges have no say at all."""
    try:
        with gating.renormalised(model.hf):
            other = circuit(model, prompts, units="heads", ranking="sentence", **settings).summary()
    except NoEffect as error:
        return {"reason": f"renormalised: {error}"}
    return {
        name: {"k90": summary["k90"], "clean": summary["clean"], "accuracy": summary["accuracy"]}
        for name, summary in (("as_trained", as_trained.summary), ("renormalised", other))
    }
