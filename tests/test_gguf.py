"""A GGUF file, written here with random weights, is read as the model it was made from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import gossamer
from gossamer.errors import GossamerError
from tests.test_cli import refused

gguf: Any = pytest.importorskip("gguf", reason="the gguf package reads GGUF files: pip install gguf")

HEADS, KV_HEADS, WIDTH, LAYERS = 4, 2, 32, 2


def byte_pairs() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the cat sat on the mat", "the dog sat on the log"] * 10, trainer)
    return tokenizer


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF keeps the two halves of a rotary pair side by side."""
    return weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    tokenizer = byte_pairs()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    hf = LlamaForCausalLM(config).eval()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(config.vocab_size)
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([word for word, _ in words])
    writer.add_token_types([3 if word == "<|endoftext|>" else 1 for word, _ in words])
    merges = Path(tokenizer.model.save(str(path.parent))[1]).read_text(encoding="utf-8").splitlines()
    writer.add_token_merges([line for line in merges if not line.startswith("#")])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)

    def add(name: str, weight: torch.Tensor) -> None:
        writer.add_tensor(name, np.ascontiguousarray(weight.detach().numpy()))

    add("token_embd.weight", hf.model.embed_tokens.weight)
    add("output_norm.weight", hf.model.norm.weight)
    add("output.weight", hf.lm_head.weight)
    for i in range(LAYERS):
        layer: Any = hf.model.layers[i]
        attention, mlp = layer.self_attn, layer.mlp
        add(f"blk.{i}.attn_norm.weight", layer.input_layernorm.weight)
        add(f"blk.{i}.ffn_norm.weight", layer.post_attention_layernorm.weight)
        add(f"blk.{i}.attn_q.weight", interleaved(attention.q_proj.weight, HEADS))
        add(f"blk.{i}.attn_k.weight", interleaved(attention.k_proj.weight, KV_HEADS))
        add(f"blk.{i}.attn_v.weight", attention.v_proj.weight)
        add(f"blk.{i}.attn_output.weight", attention.o_proj.weight)
        add(f"blk.{i}.ffn_gate.weight", mlp.gate_proj.weight)
        add(f"blk.{i}.ffn_up.weight", mlp.up_proj.weight)
        add(f"blk.{i}.ffn_down.weight", mlp.down_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, hf


def test_it_is_the_model_it_was_made_from(written: tuple[Path, LlamaForCausalLM]) -> None:
    path, hf = written
    model = gossamer.load(path)
    ids = torch.tensor([model.encode("the cat sat on the log")])
    assert (model.n_layers, model.n_heads) == (LAYERS, HEADS)
    assert torch.allclose(model.hf(ids).logits, hf(ids).logits, atol=1e-5)


def test_its_sparse_twin_and_its_adapters_load(
    written: tuple[Path, LlamaForCausalLM], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path, _ = written
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 1200)
    quick: dict[str, Any] = {"block": 16, "batch": 2, "held_out": 2, "steps": 2, "every": 1, "lr": 1e-4}
    options: dict[str, dict[str, Any]] = {"sparse": {}, "adapters": {"lora": 2}}
    for name, more in options.items():
        result = gossamer.sparsify(gossamer.load(path), str(text), tmp_path / name, **quick, **more)
        again = gossamer.evaluate(gossamer.load(tmp_path / name), gossamer.load(path), str(text), block=16, held_out=2)
        assert again["loss"] == pytest.approx(result["evaluation"]["loss"], abs=1e-5)
        assert again["warnings"] == []
    assert not [told for told in recwarn if "config file" in str(told.message)]  # nobody asks the hub for one
    for dtype in ("bfloat16", "float64"):  # the positions of both are the same
        twin, base = (gossamer.load(name, dtype=dtype) for name in (tmp_path / "adapters", path))
        assert twin.describe()["dtype"] == base.describe()["dtype"] == dtype
        own, others = (dict(hf.named_buffers()) for hf in (base.hf, twin.hf))
        assert any("inv_freq" in name for name in own)
        for name, buffer in own.items():
            assert others[name].dtype == buffer.dtype == torch.float32
            assert torch.equal(others[name], buffer)


def test_a_missing_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["circuits", str(tmp_path / "no.gguf"), "--task", "ioi", "--out", str(tmp_path / "x")]
    assert "no such file" in refused(capsys, *command)
    (tmp_path / "broken.gguf").write_bytes(b"GGUFbroken")
    command[1] = str(tmp_path / "broken.gguf")
    assert "could not load" in refused(capsys, *command)


def test_adapters_whose_file_was_moved_say_so(written: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> None:
    base = Path(shutil.copy(written[0], tmp_path / "base.gguf"))
    quick: dict[str, Any] = {"block": 16, "batch": 2, "held_out": 2, "steps": 1, "lr": 1e-4, "lora": 2}
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 1200)
    gossamer.sparsify(gossamer.load(base), str(text), tmp_path / "twin.gguf", **quick)  # a folder may be called so
    assert gossamer.load(tmp_path / "twin.gguf").sparse
    base.rename(tmp_path / "moved.gguf")
    with pytest.raises(GossamerError, match=r"base of the adapters .*base\.gguf: there is no such file"):
        gossamer.load(tmp_path / "twin.gguf")
