"""Names that try to steer a terminal, values that carry them everywhere, and the look for what came through.

Invariant: what :func:`plain` lets pass is printable text on lines, nothing else. Used by the tests of every output.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from agent.model.snapshot import Capability, Snapshot, Tier
from inspector.format import width_of
from inspector.hints import glued, is_glued
from tests.support.snapshots import gemma

NAMES = {
    "markup": "[bold red]gone[/] [link=file:///etc/passwd]click[/link] [/]",
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H\x1bc",
    "title": "\x1b]0;owned\x07",
    "hyperlink": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "c1": "\x9b31mred\x90q\x9c",
    "newline": "one\ntwo\r\nthree\rfour\tfive",
    "nul": "a\x00b\x7fc\x08\x08",
    "bidi": "abc\u202egnp.exe\u202c\u2066x\u2069",
    "zero": "a\u200bb\u200dc\ufeff",
    "surrogate": "a\ud800b",
    "separator": "a\u2028b\u2029c",
    "wide": "漢字カタカナ한글" * 20,
    "combining": "e" + "\u0301" * 500,
    "long": "x" * 10_240,
    "long_escape": "\x1b[5m" * 2_560,
    "empty": "",
    "format": "{0} %s %(name)s ${HOME} `id`",
    "json": '","kind":"error","x":"',
}

SENDABLE = " ".join(NAMES[kind][:60] for kind in NAMES if kind not in {"surrogate", "nul", "long", "long_escape"})
"""All of them that a command line and a JSON body of a server take, in one name."""

LONG = SENDABLE + "x" * 10_240

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
OWN_COLOURS = re.compile(r"\x1b\[(?:0|1|2|31|32|33)m")
"""What the renderer itself writes on a terminal."""


def ends_with_a_command(line: str) -> bool:
    """Return whether a line ends with a command: one that is longer than the terminal is never broken."""
    return is_glued(glued(line).rpartition(" ")[2])


def plain(text: str, *, width: int | None = None) -> None:
    """Fail on anything that is no printable text, and on a line that is wider than ``width`` cells."""
    found = CONTROL.search(text)
    assert found is None, ascii(text[max(0, found.start() - 80) : found.end() + 40])
    if width is not None:
        for line in text.splitlines():
            assert width_of(line) <= width or ends_with_a_command(line), line


def hostile(name: str) -> Snapshot:
    """Put a name wherever an engine or a client can put one."""
    snapshot = gemma()
    assert snapshot.requests is not None
    assert snapshot.decisions is not None
    layers = tuple(replace(layer, name=name, spec=name) for layer in snapshot.geometry.groups[0].layers)
    groups = tuple(
        replace(group, name=f"{name}#{group.id}", layers=layers, spec=name) for group in snapshot.geometry.groups
    )
    return replace(
        snapshot,
        engine=replace(
            snapshot.engine, engine=name, version=name, model=name, name=name, agent_version=name, devices=(name, name)
        ),
        capture=replace(snapshot.capture, notes=(name,)),
        geometry=replace(snapshot.geometry, groups=groups),
        requests=tuple(replace(item, id=name, status=name) for item in snapshot.requests),
        decisions=tuple(replace(item, request=name, trace=(("traceparent", name),)) for item in snapshot.decisions),
        counters={name: 1.0},
        tiers=(Tier(name=name, kind=name, details={name: name}),),
        capabilities=(Capability(name=name, on=False, reason=name),),
    )


def poisoned(value: Any, name: str) -> Any:
    """Put a name in front of every string in a value of the model; what is compared in it stays comparable."""
    if type(value) is str:
        return name + value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: poisoned(getattr(value, one.name), name) for one in fields(value)})
    if isinstance(value, Mapping):
        return {poisoned(key, name): poisoned(item, name) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(poisoned(item, name) for item in value)
    return value
