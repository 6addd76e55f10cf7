"""The bundled models' tokenizer: byte-level BPE in which a word is a token, and so is a two-digit number."""

from __future__ import annotations

import itertools

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gossamer.bundled import text

VOCABULARY = 2048
DOCUMENTS = 30_000
FIRST = "<|startoftext|>"  # before every document


def train_tokenizer(mix: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    years = pre_tokenizers.Split(pattern=Regex(r" ?\d\d"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([years, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[FIRST],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.islice(text.documents(mix), DOCUMENTS), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=FIRST, eos_token=FIRST)
