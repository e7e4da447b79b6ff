"""Token ids that the operator hands in, and their keys as the engine hashes them.

Invariant: token ids go to the engine and nowhere else; they are never printed. Called by the commands that take
``tokens:FILE``.
"""

import base64
import json
import os
import sys
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from agent.session import Session
    from inspector.selector import Selector

KEY_BYTES = 16
MAX_TOKEN = (1 << 32) - 1


def tokens_of(selector: "Selector") -> list[int] | None:
    """Read the token ids that ``tokens:FILE`` names; None for another kind of selector.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    from inspector.selector import SelectorKind  # noqa: PLC0415 - a command pays only for what it uses

    if selector.kind is not SelectorKind.TOKENS:
        return None
    try:
        text = sys.stdin.read() if selector.value == "-" else Path(selector.value).read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as error:
        raise UsageError(
            f"{selector.value} cannot be read",
            why=error.strerror,
            next_step="tokens:FILE names a file with a JSON list of token ids: [1, 2, 3]",
        ) from error
    except ValueError as error:
        raise UsageError("the tokens are not JSON", next_step="write a list of token ids: [1, 2, 3]") from error
    fits = isinstance(found, list) and all(type(token) is int and 0 <= token <= MAX_TOKEN for token in found)
    if not fits or not found:
        raise UsageError("the tokens are no list of token ids", next_step="write a list of token ids: [1, 2, 3]")
    return list(found)


def chain_of(
    session: "Session", tokens: list[int], *, salt: str | None = None, lora: str | None = None
) -> tuple[bytes, ...]:
    """Return the keys of a prefix at each hash unit, hashed by the engine itself.

    Args:
        session: With the engine.
        tokens: Token ids from the first on.
        salt: Cache salt of the request.
        lora: Name of its LoRA adapter; ``NAME=PATH`` where no request uses it now (see :func:`adapters_of`).

    Raises:
        UnsupportedError: The engine cannot hash for kvctl.
        UsageError: There are fewer tokens than one hash unit.
    """
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    keys = bytes.fromhex(_hashed(session, base64.b64encode(ids.tobytes()).decode("ascii"), salt, lora))
    if not keys:
        unit = session.geometry.hash_unit
        raise UsageError(
            f"{len(tokens)} tokens are too few",
            why=f"this engine hashes units of {unit} tokens: shorter prefixes never hit",
            next_step=f"give at least {unit}",
        )
    return tuple(keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES))


def _hashed(session: "Session", packed: str, salt: str | None, lora: str | None) -> str:
    """Ask the engine, with each adapter that may be meant until it knows one."""
    meant = adapters_of(lora)
    for name, path in meant:
        try:
            return str(session.call("hash_tokens", tokens=packed, salt=salt, lora=name, lora_path=path)["keys"])
        except UnsupportedError as error:
            raise UnsupportedError(
                "this engine does not hash token ids for kvctl", why=error.why, next_step="use hash:, request: or page:"
            ) from error
        except UsageError:  # it knows no path of an adapter of that name
            if (name, path) == meant[-1]:
                raise
    raise AssertionError(lora)


def adapters_of(lora: str | None) -> list[tuple[str | None, str | None]]:
    """Return the names and paths that ``NAME[=PATH]`` may mean, the likeliest first: both may have ``=`` in them.

    It is split where PATH is there, at the last such place. Where none is (a path of another container, a name of a
    hub) the whole may be a name that the engine knows, and else it is split at the last ``=``.
    """
    if not lora:
        return [(None, None)]
    splits = [(lora[:at], lora[at + 1 :]) for at in range(len(lora) - 1, 0, -1) if lora[at] == "=" and lora[at + 1 :]]
    for name, path in splits:
        if os.path.exists(path):  # noqa: PTH110 - False, not an error, for a text that is no path at all
            return [(name, path)]
    return [(lora, None), *splits[:1]]
