"""Commands that texts name, aimed at what the operator looks at: the next one must read the same file or engine.

Invariant: pure; only commands that read take a target, and one that follows (``-f``) never reads a file. Used by the
command line's output and by the dashboard.
"""

import re
from dataclasses import replace

from .report import Block, Cell, Facts, Prose, Report, Table

_WORDS = (
    r"(?:-o|--gate|--prefix|--limit|--where) [^\s,;'`]+|"
    r"overview|groups|states|pages|prefixes|prefix|requests|tiers|VIEW|SELECTOR|"
    r"(?:hash|request|page):[^\s,;'`]+|--?[a-z][a-z-]*|[a-z]+!?=[\w,:-]+|\d+"
)
_COMMAND = re.compile(rf"\bkvctl (inspect|decisions|validate|top|explain)\b((?: (?:{_WORDS})\b)*)")
_PLACE = {"-f", "--follow", "--snapshot", "--pid", "--engine", "--socket"}


def aim(text: str, target: str) -> str:
    """Return a text with ``target`` (``--snapshot FILE``, ready for a shell) behind each command that reads."""

    def aimed(match: re.Match[str]) -> str:
        command, words = match[1], match[2].split()
        untargeted = command == "explain" and not (words and words[0].isdigit())
        return match[0] if untargeted or _PLACE & set(words) else f"{match[0]} {target}"

    return _COMMAND.sub(aimed, text) if target else text


def aim_report(report: Report, target: str) -> Report:
    """Return a report whose texts are aimed; its data stays as it is."""
    if not target:
        return report
    blocks = [_block(block, target) for block in report.blocks]
    return replace(report, blocks=blocks, notes=[aim(note, target) for note in report.notes])


def _block(block: Block, target: str) -> Block:
    match block:
        case Facts():
            return Facts(facts=[(label, [_line(line, target) for line in lines]) for label, lines in block.facts])
        case Prose():
            return replace(block, lines=[_line(line, target) for line in block.lines])
        case Table():
            return replace(block, empty=aim(block.empty, target))


def _line(line: str | Cell, target: str) -> str | Cell:
    if isinstance(line, str):
        return aim(line, target)
    return replace(line, value=aim(line.value, target)) if isinstance(line.value, str) else line
