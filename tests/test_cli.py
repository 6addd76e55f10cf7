"""The command line as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gossamer import cli
from gossamer.circuits import runs
from gossamer.errors import GossamerError, OutOfMemory

RUN = ["circuits", "bundled:induction", "--task", "induction", "--prompts", "6"]


def call(*arguments: str) -> int:
    try:
        cli.main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail in one line."""
    capsys.readouterr()
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines, "nothing was said"
    said = [line for line in lines if line.startswith("gossamer: ")]
    assert said == lines[-1:]
    assert "Traceback" not in "".join(lines)
    return said[0]


def test_a_run_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert call(*RUN, "--out", str(out), "--json") == 0
    printed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert printed == json.loads((out / "circuit.json").read_text())
    assert printed["k90"] == 2
    assert printed["curve"]["k"] == list(range(9))
    assert not (out / "parts").exists()


def test_exact_edges_state_their_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--units", "edges", "--importance", "exact", "--prompts", "2"]
    assert call(*RUN, *more, "--out", str(tmp_path / "run")) == 0
    assert "exact importance: at most 1,056 patches, about" in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("can't allocate memory: you tried to")])
def test_no_memory_is_said_in_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gossamer.load", too_much)
    out = str(tmp_path / "out")
    assert "out of memory" in refused(capsys, "sparsify", "bundled:induction", "--data", "self", "--out", out)
    monkeypatch.setattr("gossamer.load", lambda *_, **__: [][0])  # any other fault is not hidden
    with pytest.raises(IndexError):
        call("sparsify", "bundled:induction", "--data", "self", "--out", out)


def test_another_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert call(*RUN, "--out", str(out)) == 0
    before = (out / "circuit.json").read_bytes()
    assert "holds a finished run" in refused(capsys, *RUN, "--out", str(out), "--units", "edges")
    assert (out / "circuit.json").read_bytes() == before
    assert call(*RUN, "--out", str(out), "--units", "edges", "--force") == 0
    assert json.loads((out / "circuit.json").read_text())["units"] == "edges"


def test_other_peoples_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for more in ([], ["--force"]):
        assert "holds other files (thesis.tex)" in refused(capsys, *RUN, "--out", str(tmp_path), *more)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "is a file" in refused(capsys, *RUN, "--out", str(tmp_path / "thesis.tex"))


def line(clean: str, corrupted: str) -> str:
    return json.dumps({"clean": clean, "corrupted": corrupted, "answers": [" river"], "wrong": [" cloud"]}) + "\n"


GOOD = line("apple river apple", "stone river apple")


def test_bad_input_is_one_line_and_leaves_no_file(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def circuits(task: str = "induction", model: str = "bundled:induction", *more: str) -> str:
        said = refused(capsys, "circuits", model, "--task", task, "--out", str(out), *more)
        assert not out.exists()
        return said

    def jsonl(text: str) -> str:
        (tmp_path / "mine.jsonl").write_text(text)
        return str(tmp_path / "mine.jsonl")

    assert "unknown task 'iou'" in circuits("iou")
    assert "line 2: the clean prompt has 4 tokens" in circuits(jsonl(GOOD + line("a b c d", "a b c")))
    assert "is empty" in circuits(jsonl(""))
    assert "line 17: " in circuits(jsonl(GOOD * 16 + "{oops\n"))
    long = " ".join(["apple"] * 17)
    assert "has 17 tokens, the model takes 16" in circuits(jsonl(line(long, "stone " + long[6:])))
    assert "0 prompts asked for" in circuits("induction", "bundled:induction", "--prompts", "0")
    assert "0 prompts asked for" in circuits(jsonl(GOOD), "bundled:induction", "--prompts", "0")
    assert "a batch of 0" in circuits("induction", "bundled:induction", "--batch", "0")
    assert "is not one of 'heads', 'edges'" in circuits("induction", "bundled:induction", "--units", "neurons")
    assert "share their positions" in circuits(
        "induction", "bundled:induction", "--units", "edges", "--ranking", "dataset"
    )

    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["lm_head.weight"].zero_()
    save_file(tensors, weights, metadata={"format": "pt"})
    assert "the explained effect is undefined" in circuits("induction", str(folder))
    tensors["lm_head.weight"][0, 0] = torch.nan
    save_file(tensors, weights, metadata={"format": "pt"})
    assert "lm_head.weight holds NaN" in circuits("induction", str(folder))
    weights.unlink()
    assert "holds no weights" in circuits("induction", str(folder))
    assert "no config.json" in circuits("induction", str(tmp_path / "nowhere") + "/")


def test_a_failed_replacement_keeps_the_old_run(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert call(*RUN, "--out", str(out)) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"].zero_()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = refused(capsys, "circuits", str(folder), "--task", "induction", "--out", str(out), "--force")
    assert "undefined" in said
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_running_out_of_memory_keeps_what_is_done(tmp_path: Path) -> None:
    asked = {"a": 1}

    def fail() -> None:
        with runs.run_folder(tmp_path / "x/y", asked, force=False) as parts:
            parts.add("curve", {"rows": torch.tensor([1])})
            raise OutOfMemory("too small")

    with pytest.raises(OutOfMemory):
        fail()
    with runs.run_folder(tmp_path / "x/y", asked, force=False) as parts:
        assert parts.done("curve") == {1}
    assert not (tmp_path / "x/y/parts").exists()


def test_a_refused_run_takes_its_folders_away(tmp_path: Path) -> None:
    def fail() -> None:
        with runs.run_folder(tmp_path / "x/y/z", {}, force=False) as parts:
            parts.add("baseline", {"rows": torch.tensor([1])})
            raise GossamerError("no")

    with pytest.raises(GossamerError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with runs.run_folder(tmp_path, {}, force=False):
        with (
            pytest.raises(GossamerError, match="another process is writing"),
            runs.run_folder(tmp_path, {}, force=False),
        ):
            pass
        assert (tmp_path / "parts" / "request.json").exists()


def test_what_can_not_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "could not read or write" in refused(capsys, *RUN, "--out", str(tmp_path / ("x" * 300)))


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert call(*RUN, "--out", str(out)) == 0
    for name, start in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")):
        assert call("plot", str(out), str(out), "--out", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    assert "can't draw a .gif" in refused(capsys, "plot", str(out), "--out", str(tmp_path / "a.gif"))
    assert "holds no finished run" in refused(capsys, "plot", str(tmp_path), "--out", str(tmp_path / "b.png"))
    for text in ("{}", "[]", "null"):
        (out / "circuit.json").write_text(text)
        assert "is not that of a circuit" in refused(capsys, "plot", str(out), "--out", str(tmp_path / "b.png"))
    assert not (tmp_path / "b.png").exists()


def test_commands_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such command 'fly'" in refused(capsys, "fly")
    assert "Missing option '--task'" in refused(capsys, "circuits", "gpt2", "--out", "x")


@pytest.mark.parametrize("command", [[], ["circuits"], ["tasks"], ["tasks", "show"]])
def test_help_has_examples(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*command, "--help") == 0
    text = capsys.readouterr().out
    assert "Usage: gossamer" in text
    assert not command or "Example" in text


def test_tasks_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tasks") == 0
    listed = capsys.readouterr().out
    for name in ("greater-than", "ioi", "docstring", "ioi-long", "FILE.jsonl"):
        assert name in listed
    assert call("tasks", "show", "induction", "--model", "bundled:induction", "-n", "2") == 0
    shown = capsys.readouterr().out
    assert shown.count("clean ") == 2
    assert shown.count("[") >= 4


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_is_one_line(tmp_path: Path, late: bool) -> None:
    """At any moment; exit code 1 would say that no evaluation met the bound."""
    out = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "gossamer.cli", "sparsify", "bundled:gpt2", "--data", "bundled", "--block", "16"),
        *("--held-out", "2", "--batch", "2", "--lr", "1e-4", "--steps", "100000", "--every", "10", "--out", str(out)),
    ]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it; so would a child
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    if late:
        while not list(out.glob("checkpoints/step-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        time.sleep(2)  # while torch is imported
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    # What the shell shows as 130: so we exit, or so Python ends itself if the signal came in the midst of an import.
    assert process.returncode in (130, -signal.SIGINT), said
    assert said.strip().splitlines()[-1].startswith("gossamer: interrupted; the same command goes on from here")
    assert "Traceback" not in said


def test_the_command_line_waits_for_no_torch() -> None:
    """Help is instant, and an interrupt while torch is imported is met by us."""
    subprocess.run([sys.executable, "-c", "import sys, gossamer.cli; assert 'torch' not in sys.modules"], check=True)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """Killed in the middle, the same command finishes; another command is told so."""
    out = tmp_path / "run"
    arguments = [
        *("circuits", "bundled:induction", "--task", "induction", "--units", "edges", "--importance", "exact"),
        *("--prompts", "40", "--batch", "2", "--out", str(out), "--json"),
    ]
    command = [sys.executable, "-m", "gossamer.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = out / runs.PARTS
    deadline = time.monotonic() + 120
    while not list(parts.glob("curve-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {path.name: path.read_bytes() for path in parts.glob("curve-*.safetensors")}
    assert finished
    assert not (out / "circuit.json").exists()

    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "holds an unfinished run that was asked otherwise (prompts_sha256, seed)" in other.stderr
    assert {path.name: path.read_bytes() for path in parts.glob("curve-*.safetensors")} == finished

    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["k90"] == 2
    assert not parts.exists()


def test_few_sizes_are_some_of_every_size(tmp_path: Path) -> None:
    curves = {}
    for sizes in ("every", "few"):
        more = ["--units", "edges", "--sizes", sizes, "--out", str(tmp_path / sizes)]
        assert call(*RUN, *more) == 0
        told = json.loads((tmp_path / sizes / "circuit.json").read_text())
        assert told["sizes"] == sizes
        curves[sizes] = told["curve"]["k"]
    assert len(curves["few"]) < len(curves["every"])
    assert (curves["few"][0], curves["few"][-1]) == (curves["every"][0], curves["every"][-1])
