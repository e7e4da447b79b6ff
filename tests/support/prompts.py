"""Prompts of random token ids, the same ones in every run.

Invariant: two prompts with different names share no prefix (the first token already differs in all but 1 of 256 cases,
and then the second). Standard library only.
"""

import random
from collections.abc import Sequence

FIRST, LAST = 4, 259
"""Ids of ordinary text in the tests' tokenizer (see ``tests.support.tokenizer``)."""


def prompt(name: str, tokens: int) -> list[int]:
    """Return ``tokens`` ids drawn with ``name`` as the seed; a longer prompt of the same name begins with a shorter."""
    draw = random.Random(name)
    return [draw.randint(FIRST, LAST) for _ in range(tokens)]


def sibling(stem: Sequence[int], shared: int, name: str, tokens: int) -> list[int]:
    """Return a prompt that shares exactly the first ``shared`` ids of ``stem`` and then goes its own way."""
    rest = prompt(name, tokens)
    if shared < len(stem) and rest and rest[0] == stem[shared]:
        rest[0] = FIRST + (rest[0] - FIRST + 1) % (LAST - FIRST + 1)
    return [*stem[:shared], *rest]
