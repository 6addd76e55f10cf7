from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import gossamer
from gossamer import GossamerError
from gossamer.attention import function
from gossamer.bundled import planted
from gossamer.models import find_first_token
from tests.conftest import shared
from tests.families import random_model


def test_a_folder_loads_as_it_was_saved(folder: Path) -> None:
    model = gossamer.load(folder)
    again = gossamer.load("bundled:induction")
    assert (model.n_layers, model.n_heads, model.context) == (2, 4, planted.POSITIONS)
    assert model.fingerprint() == again.fingerprint()
    assert model.hf.config._attn_implementation != function.NAME


def test_a_model_is_shown_in_a_line(folder: Path) -> None:
    assert repr(gossamer.load(folder)).startswith(f"Model(name={str(folder)!r}, revision=None, first_token=")
    assert len(repr(gossamer.load(folder))) < 200 + len(str(folder))


def test_dtype_and_device_are_chosen(folder: Path) -> None:
    assert gossamer.load(folder, dtype="float16").hf.dtype == torch.float16
    with pytest.raises(GossamerError, match="unknown dtype 'int3'"):
        gossamer.load(folder, dtype="int3")
    with pytest.raises(GossamerError, match="unknown device 'gpu'"):
        gossamer.load(folder, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(GossamerError, match="not available on this machine"):
            gossamer.load(folder, device="cuda")


def test_a_folder_without_weights_or_with_pickled_ones(folder: Path) -> None:
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(GossamerError, match="only pickled weights"):
        gossamer.load(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(GossamerError, match="holds no weights"):
        gossamer.load(folder)
    with pytest.raises(GossamerError, match=r"no config\.json"):
        gossamer.load(folder.parent)


def test_nan_in_the_weights_is_said(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 2] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GossamerError, match=r"transformer\.h\.1\.mlp\.c_fc\.weight holds NaN"):
        gossamer.load(folder)


def test_missing_tensors_are_not_made_up(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GossamerError, match="lack 1 tensors"):
        gossamer.load(folder)


def test_an_unknown_bundled_name() -> None:
    with pytest.raises(GossamerError, match="unknown bundled model 'gpt9'"):
        gossamer.load("bundled:gpt9")


TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50}
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "gpt_oss": {**TINY, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 50},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "rotary_dim": 4},
    "bert": {**TINY, "is_decoder": False},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 50},
    "jamba": {
        **TINY,
        "num_key_value_heads": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "use_mamba_kernels": False,
        "mamba_d_state": 4,
    },
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_attention_that_cannot_be_reproduced_is_refused_by_name(kind: str) -> None:
    hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **UNSUPPORTED[kind]))
    before = hf.config._attn_implementation
    with pytest.raises(GossamerError, match=rf"\({kind}\) is not supported"):
        gossamer.wrap(hf, planted.build()[1])
    assert hf.config._attn_implementation == before


def test_the_fingerprint_sees_every_weight() -> None:
    hf = random_model("llama")
    model = gossamer.wrap(hf, planted.build()[1])
    before = model.fingerprint()
    assert before == model.fingerprint()
    with torch.no_grad():
        for parameter in hf.parameters():
            place = (0,) * parameter.dim()
            value = parameter[place].clone()
            parameter[place] += 1e-6
            assert model.fingerprint() != before
            parameter[place] = value
    assert model.fingerprint() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_leak_is_refused(dtype: torch.dtype) -> None:
    """One part in a thousand of the previous token, past attention."""
    hf = random_model("llama")
    hf.to(dtype)  # type: ignore[arg-type]
    for layer in hf.model.layers:
        layer.mlp.register_forward_hook(lambda _m, inputs, out: out + 1e-3 * inputs[0].roll(1, dims=1))
    with pytest.raises(GossamerError, match="something other than attention"):
        gossamer.wrap(hf, planted.build()[1])


def test_half_precision_of_a_real_model_loads(stories: Path) -> None:
    assert gossamer.load(stories, dtype="bfloat16").hf.dtype == torch.bfloat16


def test_a_forward_pass_that_fails_is_a_refusal() -> None:
    hf = random_model("llama")
    hf.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(GossamerError, match=r"a pass over a few tokens failed \(division by zero\)"):
        gossamer.wrap(hf, planted.build()[1])


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", b""), ("model.safetensors", b"x" * 1000), ("config.json", b"[]"), ("config.json", b"{")],
)
def test_broken_files_are_one_error(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(GossamerError, match="could not load"):
        gossamer.load(folder)


def test_a_tokenizer_that_does_not_fit() -> None:
    model = gossamer.wrap(random_model("llama", vocabulary=10), planted.build()[1], name="small")
    with pytest.raises(GossamerError, match="the tokenizer does not fit 'small'"):
        gossamer.prompts("induction", model, 3)


def test_a_different_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = random_model("llama")
    for layer in hf.model.layers:
        layer.self_attn.scaling = 1.0  # same in both: fine
    assert gossamer.wrap(hf, planted.build()[1]).n_heads == 4
    original = function.AttentionCall.__init__

    def other(self: Any, **kwargs: Any) -> None:
        original(self, **kwargs | {"scaling": kwargs["scaling"] * 1.1})

    monkeypatch.setattr(function.AttentionCall, "__init__", other)
    with pytest.raises(GossamerError, match="its logits differ by"):
        gossamer.wrap(hf, planted.build()[1])


def test_what_is_not_on_the_hub_has_no_revision(tmp_path: Path) -> None:
    hf, tokenizer = planted.build()
    hf.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for name in ("bundled:induction", str(tmp_path)):
        assert gossamer.load(name, revision="none-such").revision is None


def test_a_model_that_magnifies_rounding_loads_or_is_told_how() -> None:
    """The first one's own two attentions differ by 5e-4 of the spread of its logits, in float32; the second one's by
    more than that spread, in bfloat16."""
    tokenizer = planted.build()[1]
    for layers, seed in ((30, 2), (60, 1)):
        hf = random_model("llama", seed=seed, num_hidden_layers=layers)
        with torch.no_grad():
            for layer in hf.model.layers:
                layer.self_attn.q_proj.weight *= 4
        if layers == 30:
            assert gossamer.wrap(hf, tokenizer).n_layers == layers
    hf.to(torch.bfloat16)  # type: ignore[arg-type]
    with pytest.raises(GossamerError, match=r"its own eager and sdpa attention by .*: load it in float32"):
        gossamer.wrap(hf, tokenizer)


def test_tokens_that_meet_outside_attention_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = random_model("llama")
    norm = hf.model.layers[1].post_attention_layernorm
    forward = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: forward(x + 0.5 * x.roll(1, dims=1)))
    with pytest.raises(GossamerError, match="something other than attention"):
        gossamer.wrap(hf, planted.build()[1])


@pytest.mark.parametrize(
    ("name", "expected"), [("tokenizers/gpt2", None), ("tokenizers/olmo", None), ("models/stories15M", "<s>")]
)
def test_the_first_token_is_the_models_own(name: str, expected: str | None) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared(name))
    token = find_first_token(tokenizer, "auto")
    assert (None if token is None else tokenizer.convert_ids_to_tokens(token)) == expected
    assert find_first_token(tokenizer, "none") is None


def test_the_first_token_is_settable(folder: Path) -> None:
    model = gossamer.load(folder, first_token="The")
    assert model.encode("apple river")[0] == planted.VOCABULARY.index("The")
    assert model.describe()["first_token"] == "The"
    with pytest.raises(GossamerError, match="'<nope>' is not in the tokenizer's vocabulary"):
        gossamer.load(folder, first_token="<nope>")


def test_a_tokenizer_that_adds_its_own_first_token(folder: Path) -> None:
    spec = json.loads((folder / "tokenizer.json").read_text())
    the = planted.VOCABULARY.index("The")
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "The", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"The": {"id": "The", "ids": [the], "tokens": ["The"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "The"}))
    assert gossamer.load(folder).first_token == the
