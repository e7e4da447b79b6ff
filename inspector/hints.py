"""Commands that texts name: aimed at what the operator looks at, quoted for a shell, recognised so that none breaks.

Invariant: pure; a command that is shown does what it says when it is copied: the next one reads the same file or
engine, one that follows (``-f``) or changes something never gets a file, and a name that cannot be shown as it is has a
placeholder in its place. Used by the command line's output and by the dashboard.
"""

import re
import shlex
from dataclasses import replace

from agent.model.decision import Outcome, Reason

from .format import clean
from .report import Block, Cell, Facts, Prose, Report, Table

_PUNCTUATION = ",;:.!?()"
"""Ends a command in a sentence, so no word of one ends with it unquoted."""

_QUOTED = r"""'[^']*'(?:"'"'[^']*')*"""
_ARGUMENT = rf"""(?:{_QUOTED}|[^\s'"`])*(?:{_QUOTED}|[^\s'"`{_PUNCTUATION}])"""
_WORDS = "|".join(
    (
        rf"(?:-o|--(?:snapshot|pid|engine|socket|gate|prefix|limit|where|file|plan|save-plan)) {_ARGUMENT}",
        rf"(?:hash|request|page|tokens|group|state):{_ARGUMENT}",
        _QUOTED,
        r"-- (?:vllm serve )?(?:MODEL|\.\.\.)",
        r"--?[a-z][a-z-]*",
        "overview|groups|states|pages|prefixes|prefix|requests|tiers|stale|all|show|check|diff|pin|save|info|assets",
        "|".join((*Reason, *Outcome)),
        r"[A-Z][A-Z0-9]+|\d+",
    )
)
_NAMES = (
    "inspect|decisions|validate|top|explain|invalidate|fingerprint|snapshot|ps|run|export|doctor|demo|completion|"
    "attach|detach"
)
_COMMAND = re.compile(rf"\bkvctl ({_NAMES})\b((?: (?:{_WORDS})(?=$|[\s'`{_PUNCTUATION}]))*)")
_OTHER = re.compile(rf"(?<!\S)(?:{_QUOTED}|\S+) -m kvctl\b|\b(?:rm|chmod 0700|pip install(?: -[-\w]+)*) {_ARGUMENT}")

_READ = {"inspect", "decisions", "validate", "top", "explain", "fingerprint show"}
"""Commands that take a file as well as an engine."""

_LIVE = {"invalidate", "fingerprint check", "fingerprint pin", "snapshot save"}
_FOLLOW = {"-f", "--follow"}
_PLACE = {"--snapshot", "--pid", "--engine", "--socket"}
_GLUE = "\ue000"
"""In place of a space inside a command; clean text never has it."""


def quoted(text: str, placeholder: str) -> str:
    """Return free text as one word of a command that a shell takes.

    Args:
        text: A path, a name, a selector: whatever somebody else chose.
        placeholder: What stands for a text that is shown as another one: copied, it would name something else.
    """
    if clean(text) != text:
        return placeholder
    word = shlex.quote(text)
    return f"'{text}'" if word == text and text[-1] in _PUNCTUATION else word


def glued(text: str) -> str:
    """Return clean text in which commands have no spaces, so that no line ends inside one; see :func:`unglued`."""
    for pattern in (_COMMAND, _OTHER):
        text = pattern.sub(lambda match: match[0].replace(" ", _GLUE), text)
    return text


def unglued(text: str) -> str:
    """Return a piece of a text as it was before :func:`glued`."""
    return text.replace(_GLUE, " ")


def is_glued(word: str) -> bool:
    """Return whether a word of a glued text is a command."""
    return _GLUE in word


def aim(text: str, target: str) -> str:
    """Return a text with ``target`` (``--snapshot FILE``, ready for a shell) behind each command that can take it."""
    live = not target.startswith("--snapshot")

    def aimed(match: re.Match[str]) -> str:
        name, words = match[1], match[2].split()
        whole = f"{name} {words[0]}" if name in {"fingerprint", "snapshot"} and words else name
        takes = whole in _READ or (live and whole in _LIVE)
        if name == "explain":
            word = words[0] if words else ""
            takes = (word.isascii() and word.isdigit()) or word.lstrip("'").startswith("request:")
        if not takes or "--help" in words or _PLACE & set(words) or (not live and _FOLLOW & set(words)):
            return match[0]
        return f"{match[0]} {target}"

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
