"""The tiny target with a tokenizer of bytes and pairs of letters: its answers hold every byte, so also broken UTF-8."""

from __future__ import annotations

from pathlib import Path

import models
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<s>", "</s>")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def write(folder: Path) -> Path:
    """The target of the served tests, which can read and write text."""
    models.write_target(folder)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first in LETTERS for second in LETTERS][: models.VOCAB - len(SPECIAL) - len(symbols)]
    words = [*SPECIAL, *symbols, *("".join(pair) for pair in pairs)]
    inner = Tokenizer(tokenizer_models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=pairs))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=CHAT, **names).save_pretrained(folder)
    return folder
