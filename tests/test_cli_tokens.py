"""Naming the adapter of token ids: names and paths may both have an equals sign in them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.errors import UsageError
from kvctl.tokens import adapters_of, chain_of


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, [(None, None)]),
        ("", [(None, None)]),
        ("name", [("name", None)]),
        ("name=", [("name=", None)]),
        ("name={}/a", [("name", "{}/a")]),
        ("tenant=7={}/a", [("tenant=7", "{}/a")]),
        ("name={}/step=100", [("name", "{}/step=100")]),
        ("tenant=7={}/step=100", [("tenant=7", "{}/step=100")]),
        ("name=org/hub", [("name=org/hub", None), ("name", "org/hub")]),
        ("tenant=7=org/hub", [("tenant=7=org/hub", None), ("tenant=7", "org/hub")]),
        ("name=/not/here=9", [("name=/not/here=9", None), ("name=/not/here", "9")]),
    ],
)
def test_where_name_and_path_part(tmp_path: Path, text: str | None, meant: list[tuple[str | None, str | None]]) -> None:
    """Where the path is there; else the whole may be a name, and then the last equals sign parts them."""
    for folder in ("a", "step=100"):
        (tmp_path / folder).mkdir()
    place = str(tmp_path)
    assert adapters_of(text and text.format(place)) == [(name, path and path.format(place)) for name, path in meant]


@pytest.mark.parametrize(("used", "expected"), [("tenant=7", ("tenant=7", None)), ("other", ("tenant", "7"))])
def test_a_name_that_is_in_use_is_meant(used: str, expected: tuple[str, str | None]) -> None:
    """The engine knows adapters that requests use: such a name needs no path, whatever signs are in it."""
    asked: list[tuple[str, str | None]] = []

    def call(op: str, /, *, lora: str, lora_path: str | None, **_: Any) -> dict[str, str]:
        asked.append((lora, lora_path))
        if lora_path is None and lora != used:
            raise UsageError("the path of this LoRA adapter is not known")
        return {"keys": "00" * 16}

    session: Any = SimpleNamespace(call=call, geometry=SimpleNamespace(hash_unit=16))
    assert chain_of(session, [1] * 16, lora="tenant=7") == (bytes(16),)
    assert asked[-1] == expected
