"""`bundled:induction`: a GPT-2 whose weights are set by hand, so that its circuit is known.

Two layers of four heads, no MLPs. On the `induction` task ("... cloud river ... cloud" -> "river") two heads do it all:

- L0H1, previous token: position i attends to i - 1 and writes that token into the `previous` slot;
- L1H2, induction: attends to the position whose `previous` slot holds the current token, and writes that position's own
  token into the `output` slot, which the unembedding reads. Where there is none, it rests on the first position.

The other six heads are small random noise. A method that doesn't find these two heads, and in each prompt the two edges
through which the answer travels, is wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from gossamer.tasks.words import COPYABLE

PREVIOUS_TOKEN = (0, 1)  # layer, head
INDUCTION = (1, 2)

VOCABULARY = ["<unk>", "The", "words:", *COPYABLE]
POSITIONS = 16
WIDTH, HEADS, D_HEAD = 256, 4, 64

# The residual stream is a row of one-hot slots, written twice, the second time negated: so its mean is 0 and its
# length known, and each layer norm can be set to change nothing.
HALF = WIDTH // 2
TOKEN = slice(0, len(VOCABULARY))
PREVIOUS = slice(TOKEN.stop, TOKEN.stop + len(VOCABULARY))
OUTPUT = slice(PREVIOUS.stop, PREVIOUS.stop + len(VOCABULARY))
POSITION = slice(OUTPUT.stop, OUTPUT.stop + POSITIONS)

LOUD = 4.0  # how much larger tokens and positions are written than what heads add: heads then hardly move the norm
MATCH = 8.0  # the induction head's score of a match
REST = 4.0  # and of the first position


def build() -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        n_inner=8,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        set_weights(model)
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def set_weights(model: Any) -> None:
    for parameter in model.parameters():
        parameter.zero_()
    body, words, places = model.transformer, torch.eye(len(VOCABULARY)), torch.eye(POSITIONS)
    body.wte.weight[:, TOKEN], body.wte.weight[:, mirrored(TOKEN)] = LOUD * words, -LOUD * words
    body.wpe.weight[:, POSITION], body.wpe.weight[:, mirrored(POSITION)] = LOUD * places, -LOUD * places
    unembed = model.get_output_embeddings()
    unembed.weight[:, OUTPUT] = 10 * words

    # Token and position are there from the start; the previous token comes with layer 0, the output with layer 1.
    norms = [
        (body.h[0].ln_1, 0),
        (body.h[0].ln_2, 1),
        (body.h[1].ln_1, 1),
        (body.h[1].ln_2, 2),
        (body.ln_f, 2),
    ]
    for norm, added in norms:
        norm.weight.fill_((2 * (2 * LOUD**2 + added) / WIDTH) ** 0.5)

    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        attention = body.h[layer].attn
        for head in range(HEADS):
            if (layer, head) not in (PREVIOUS_TOKEN, INDUCTION):
                query, key, value, out = views(attention, head)
                for part, scale in ((query, 0.05), (key, 0.05), (value, 0.02), (out, 0.01)):
                    part.copy_(torch.randn(part.shape, generator=generator) * scale)

    root = D_HEAD**0.5  # undoes the division in the attention score
    query, key, value, out = views(body.h[0].attn, PREVIOUS_TOKEN[1])
    query[POSITION, :POSITIONS] = 20 * root * places / LOUD**2
    key[POSITION, 1:POSITIONS] = places[:, :-1]  # position j answers to query j + 1
    copy(value, out, PREVIOUS)

    query, key, value, out = views(body.h[1].attn, INDUCTION[1])
    query[TOKEN, : len(VOCABULARY)] = MATCH * root * words / LOUD
    key[PREVIOUS, : len(VOCABULARY)] = words
    body.h[1].attn.c_attn.bias[INDUCTION[1] * D_HEAD + D_HEAD - 1] = REST * root  # a query of its own ...
    key[POSITION.start, D_HEAD - 1] = 1 / LOUD  # ... that the first position answers
    copy(value, out, OUTPUT)


def mirrored(slot: slice) -> slice:
    return slice(HALF + slot.start, HALF + slot.stop)


def views(attention: Any, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One head's weights, to be written to: query, key, value (d_model, d_head) and output (d_head, d_model)."""
    columns = [slice(part * WIDTH + head * D_HEAD, part * WIDTH + (head + 1) * D_HEAD) for part in range(3)]
    merged = attention.c_attn.weight
    return (
        merged[:, columns[0]],
        merged[:, columns[1]],
        merged[:, columns[2]],
        attention.c_proj.weight[columns[0]],
    )


def copy(value: Tensor, out: Tensor, slot: slice) -> None:
    """Let a head carry the attended token into a slot."""
    words = torch.eye(len(VOCABULARY))
    value[TOKEN, : len(VOCABULARY)] = words / LOUD
    out[: len(VOCABULARY), slot] = words
    out[: len(VOCABULARY), mirrored(slot)] = -words
