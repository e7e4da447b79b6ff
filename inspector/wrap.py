"""Breaking one line of text into lines that fit, but never inside a command.

Invariant: nothing of the text is lost but the spaces at a break; a command that is wider than the place stands alone in
a line that is too long, which a terminal wraps and a copy takes as it is. Pure; used by :mod:`inspector.text`.
"""

import re

from .format import width_of
from .hints import glued, is_glued, unglued

_WORD = re.compile(r"( *)([^ ]+)")


def wrap(text: str, room: int, *, first: str = "", rest: str = "", whole: bool = True) -> list[str]:
    """Return clean text in lines.

    Args:
        text: One line.
        room: Terminal cells of a line, indentation included.
        first: Indentation of the first line.
        rest: Indentation of the others.
        whole: Keep commands in one line; False where a line that is too long would be clipped.
    """
    lines: list[str] = []
    line, filled = first, False
    for gap, word in _WORD.findall(glued(text) if whole else text):
        plain = unglued(word)
        if filled and width_of(line) + len(gap) + width_of(plain) <= room:
            line += gap + plain
            continue
        if filled:
            lines.append(line)
            line = rest
        if not is_glued(word) and width_of(line) + width_of(plain) > room:
            *pieces, plain = _pieces(plain, room - width_of(line), room - width_of(rest))
            for piece in pieces:
                lines.append(line + piece)
                line = rest
        line, filled = line + plain, True
    return [*lines, line] if filled else lines


def _pieces(word: str, room: int, rest: int) -> list[str]:
    """Cut a word into pieces of ``room`` cells for the first and ``rest`` for the others, each of at least one."""
    pieces: list[str] = []
    begin = taken = 0
    for at, char in enumerate(word):
        cells = width_of(char)
        if taken + cells > room and at > begin:
            pieces.append(word[begin:at])
            begin, taken, room = at, 0, rest
        taken += cells
    return [*pieces, word[begin:]]
