from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import gossamer
from gossamer.errors import GossamerError
from gossamer.models import Model
from gossamer.training import blocks as blocks_module
from gossamer.training import sampled
from gossamer.training.blocks import TextBlocks, cut
from gossamer.training.documents import documents
from gossamer.training.sampled import SampledBlocks, sample
from tests.conftest import wrapped
from tests.families import random_model


@pytest.fixture(scope="module")
def model() -> Model:
    return wrapped("gpt2")


def words(model: Model) -> list[str]:
    special = set(model.tokenizer.all_special_tokens)
    return sorted(word for word in model.tokenizer.get_vocab() if word not in special)


def text_of(model: Model, document: int) -> str:
    chosen = np.random.default_rng(document).choice(words(model), size=23)
    return " ".join(chosen)


@pytest.fixture
def file(model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text_of(model, n)}) + "\n" for n in range(300)))
    return path


def open_text(model: Model, path: Path, *, block: int = 16, seed: int = 0) -> TextBlocks:
    return TextBlocks(documents(str(path)), model, block=block, held_out=8, seed=seed)


def test_every_kind_of_file_gives_the_same_documents(tmp_path: Path) -> None:
    texts = ["one\ntwo", "three", "vier, fünf"]
    joined = "\n<|endoftext|>\n".join(texts)
    (tmp_path / "a.txt").write_text(joined, encoding="utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write(joined)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "B.TXT.GZ").write_bytes((tmp_path / "a.txt.gz").read_bytes())
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.jsonl").read_bytes())
    for name in ("a.txt", "a.txt.gz", "a.jsonl", "a.json.gz", "a.parquet", "B.TXT.GZ", "marked.jsonl"):
        found = documents(str(tmp_path / name))
        assert list(found()) == texts
        assert list(found(2)) == texts[2:]


def test_held_out_text_is_never_trained_on(model: Model, file: Path) -> None:
    data = open_text(model, file)
    held = {n for n in range(300) if n % 10 == 9}
    assert data.held_out.shape == (8, 16)
    known = [model.tokenizer(text_of(model, n), add_special_tokens=False).input_ids for n in range(300)]
    stream = data.take(2000).flatten().tolist()
    seen = " ".join(map(str, stream))
    for n in held:
        assert " ".join(map(str, known[n][2:12])) not in seen
    assert any(" ".join(map(str, known[n][2:12])) in seen for n in range(60) if n not in held)


def test_documents_have_boundaries(model: Model, file: Path) -> None:
    data = open_text(replace(model, first_token=0), file)
    taken = data.take(100)
    assert (taken[:, 0] == 0).all()  # every block begins with the model's first token
    share = (taken[:, 1:] == 0).float().mean().item()
    assert share == pytest.approx(1 / 24, rel=0.3)  # documents are 23 words


def test_the_order_is_that_of_the_seed(model: Model, file: Path) -> None:
    first, again, other = (open_text(model, file, seed=seed).take(40) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sorted(map(tuple, first.tolist())) != first.tolist()


@pytest.mark.parametrize("taken", [0, 3, 64, 65, 200, 900])
def test_a_stream_goes_on_where_it_stopped(
    model: Model, file: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a chunk, at its end, and in the second epoch."""
    monkeypatch.setattr(blocks_module, "CHUNK", 64)
    whole = open_text(model, file)
    if taken:
        whole.take(taken)
    later = open_text(model, file)
    later.restore(json.loads(json.dumps(whole.state())))
    assert torch.equal(whole.take(150), later.take(150))


def test_long_documents_are_cut_at_spaces(model: Model, tmp_path: Path) -> None:
    text = " ".join(text_of(model, n) for n in range(200))
    pieces = cut(text, 100)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 100
    assert all(piece.startswith(" ") for piece in pieces[1:])
    assert cut("x" * 250, 100) == ["x" * 100, "x" * 100, "x" * 50]
    (tmp_path / "long.txt").write_text(" ".join([text] * 2))
    data = open_text(model, tmp_path / "long.txt")
    assert data.held_out.numel()
    assert data.take(20).shape == (20, 16)


def test_the_last_words_of_one_long_document_are_no_error(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that ends within a document, and what is left of the text does not fill a block."""
    monkeypatch.setattr(blocks_module, "PIECE", 100)
    monkeypatch.setattr(blocks_module, "CHUNK", 4)
    path = tmp_path / "long.txt"
    for length in range(30, 60):
        path.write_text(" ".join(text_of(model, n) for n in range(length)))
        data = open_text(model, path)
        while data.start["epoch"] < 2:
            assert data.take(1).shape == (1, 16)


def test_another_text_of_the_same_name_and_length_is_another(tmp_path: Path) -> None:
    path, found = tmp_path / "text.txt", []
    for last in "ab":
        path.write_text("x" * 2**21 + last)
        found.append(documents(str(path)).identity)
    assert found[0] != found[1]


def test_data_that_does_not_do(model: Model, tmp_path: Path) -> None:
    def refused(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(GossamerError) as error:
            open_text(model, path)
        assert "\n" not in str(error.value)
        return str(error.value)

    with pytest.raises(GossamerError, match="--data is empty"):
        documents(" ")
    assert "is empty" in refused("empty.txt", "")
    assert "too short" in refused("blank.txt", "\n\n")
    assert "fewer than ten; give more text" in refused("short.txt", text_of(model, 0))
    assert "line 2" in refused("bad.jsonl", '{"text": "a"}\nnonsense\n')
    assert "--column" in refused("other.jsonl", '{"content": "a"}\n')
    assert "not text" in refused("number.jsonl", '{"text": 5}\n')
    assert "can't be read" in refused("bad.txt.gz", b"not gzip at all")
    assert "can't be read" in refused("bad.parquet", b"PAR1 not parquet")
    assert "can't be read" in refused("latin.txt", "é".encode("latin-1"))
    assert "don't know this kind" in refused("text.docx", "a")
    with pytest.raises(GossamerError, match="no such file"):
        documents(str(tmp_path / "missing.txt"))
    with pytest.raises(GossamerError, match="is a folder"):
        documents(str(tmp_path))


def test_a_text_that_is_all_held_out_is_too_short(model: Model, tmp_path: Path) -> None:
    """Enough for the held-out part, not for a block to train on."""
    path = tmp_path / "text.jsonl"
    lines = [""] * 9 + [text_of(model, 0)]
    path.write_text("".join(json.dumps({"text": line or words(model)[0]}) + "\n" for line in lines))
    with pytest.raises(GossamerError, match="left to train on"):
        open_text(model, path, block=20).take(1)


def test_a_tokenizer_that_does_not_fit(model: Model, file: Path) -> None:
    small = replace(model, hf=random_model("gpt2", vocabulary=4))
    with pytest.raises(GossamerError, match="tokenizer does not fit"):
        open_text(small, file)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma3_text"])  # the last two with sliding windows
def test_sampling_with_a_cache_equals_sampling_without(name: str) -> None:
    """The slow twin: the whole text again for every token."""
    model = wrapped(name)
    beginning = 3
    fast = sample(model, 4, 12, beginning, np.random.default_rng(5))
    generator = np.random.default_rng(5)
    slow = torch.full((4, 1), beginning)
    for _ in range(11):
        with torch.no_grad():
            p = model.hf(slow).logits[:, -1].double().softmax(-1)
        u = generator.random((4, 1))
        drawn = [int(np.searchsorted(np.cumsum(row.numpy()), u[i, 0])) for i, row in enumerate(p)]
        slow = torch.cat([slow, torch.tensor(drawn)[:, None]], dim=1)
    assert torch.equal(fast, slow)


def test_sampled_text_is_fresh_and_repeatable(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "CHUNK", 8)
    model = replace(model, first_token=0)
    made = [SampledBlocks(model, nullcontext, block=10, held_out=4, seed=0) for _ in range(2)]
    assert made[0].held_out.shape == (4, 10)
    first = made[0].take(100)
    assert torch.equal(first, made[1].take(100))
    assert (first[:, 0] == 0).all()
    assert len(set(map(tuple, first.tolist()))) == 100  # none is used twice
    later = SampledBlocks(model, nullcontext, block=10, held_out=4, seed=0)
    later.restore(json.loads(json.dumps(made[0].state())))
    assert torch.equal(later.take(20), made[0].take(20))


def test_half_a_character_is_replaced(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n')
    assert list(documents(str(path))()) == ["a \ufffd b \U0001f600"]


def test_drawn_text_is_kept_for_another_run(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "CHUNK", 4)
    model = replace(model, first_token=0)
    shape: dict[str, Any] = {"block": 10, "held_out": 4, "seed": 0}
    plain = SampledBlocks(model, nullcontext, **shape)
    first = SampledBlocks(model, nullcontext, keep=tmp_path, **shape)
    text = plain.take(8)
    assert torch.equal(first.take(8), text)
    monkeypatch.setattr(sampled, "sample", None)  # nothing is drawn any more
    again = SampledBlocks(model, nullcontext, keep=tmp_path, **shape)
    assert torch.equal(again.held_out, plain.held_out)
    assert torch.equal(again.take(8), text)
    with pytest.raises(TypeError):  # other text
        SampledBlocks(model, nullcontext, keep=tmp_path, **{**shape, "seed": 1})
    next(tmp_path.glob("*-000000.safetensors")).write_bytes(b"cut")
    with pytest.raises(GossamerError, match="remove it"):
        SampledBlocks(model, nullcontext, keep=tmp_path, **shape).take(1)
    (held_out,) = tmp_path.glob(f"*-{sampled.HELD_OUT:06}.safetensors")
    for wrong in (plain.held_out[:, :5], plain.held_out[:2], plain.held_out.flip(1), plain.held_out + 1000):
        save_file({"ids": wrong.contiguous()}, held_out)
        with pytest.raises(GossamerError, match="holds no text of"):
            SampledBlocks(model, nullcontext, keep=tmp_path, **shape)
    with pytest.raises(GossamerError, match="this is a file, give a folder"):
        SampledBlocks(model, nullcontext, keep=held_out, **shape)


def test_other_text_is_not_kept(model: Model, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c d " * 100)
    with pytest.raises(GossamerError, match="--keep-text"):
        gossamer.sparsify(model, str(tmp_path / "text.txt"), tmp_path / "run", keep_text=tmp_path)
