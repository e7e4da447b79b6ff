"""A byte-level tokenizer made on the spot: a text of n bytes is n tokens, and every id can be turned into text.

Invariant: downloads nothing. Used by ``tests.support.models`` only.
"""

from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
PAD, EOS, BOS = 0, 1, 2
FIRST_BYTE = len(SPECIAL)
"""Id of the first byte token: ids from here to ``FIRST_BYTE + 255`` are ordinary text."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write the tokenizer's files for a vocabulary of ``vocabulary`` ids into ``folder``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids: dict[str, int] = {name: index for index, name in enumerate(SPECIAL)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        ids[character] = len(ids)
    for index in range(len(ids), vocabulary):
        ids[f"<x{index}>"] = index
    tokenizer: Any = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
        model_max_length=1 << 20,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(str(folder))
