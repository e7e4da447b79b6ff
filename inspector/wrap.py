"""Breaking one line of text into lines that fit, but never inside a command.

Invariant: nothing of the text is lost but the spaces at a break. A command that is wider than the place stands alone in
a line that is too long, which a terminal wraps and a copy takes as it is; where such a line would be clipped, it goes
on behind a backslash, as a shell reads it. Pure; used by :mod:`inspector.text`.
"""

import re

from .format import width_of
from .hints import glued, is_glued, unglued

_WORD = re.compile(r"( *)([^ ]+)")
_ARGUMENT = re.compile(r"""(?:'[^']*'|"[^"]*"|[^ ])+""")
"""One word of a command, as a shell reads it."""
_ON = " \\"
"""Ends a line of a command that goes on."""


def wrap(text: str, room: int, *, first: str = "", rest: str = "", whole: bool = True) -> list[str]:
    """Return clean text in lines.

    Args:
        text: One line.
        room: Terminal cells of a line, indentation included.
        first: Indentation of the first line.
        rest: Indentation of the others.
        whole: Keep commands in one line however long they are; False where such a line would be clipped.
    """
    lines: list[str] = []
    line, filled = first, False
    for gap, word in _WORD.findall(glued(text)):
        plain = unglued(word)
        if filled and width_of(line) + len(gap) + width_of(plain) <= room:
            line += gap + plain
            continue
        if filled:
            lines.append(line)
            line = rest
        if width_of(line) + width_of(plain) > room and not (whole and is_glued(word)):
            cut = _continued if is_glued(word) else _pieces
            *pieces, plain = cut(plain, room - width_of(line), room - width_of(rest))
            for piece in pieces:
                lines.append(line + piece)
                line = rest
        line, filled = line + plain, True
    return [*lines, line] if filled else lines


def _continued(command: str, room: int, rest: int) -> list[str]:
    """Cut a command between its words, each piece but the last with a sign that it goes on."""
    pieces: list[str] = []
    line = ""
    for word in _ARGUMENT.findall(command):
        longer = f"{line} {word}" if line else word
        if line and width_of(longer) + len(_ON) > room:
            pieces.append(line + _ON)
            line, room = word, rest
        else:
            line = longer
        if width_of(line) > room:  # a path that is wider than the place
            *cut, line = _pieces(line, room, rest)
            pieces += cut
            room = rest
    return [*pieces, line]


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
