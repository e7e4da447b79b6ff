"""Frozen values as plain JSON values and back, by their declared types.

Invariant: ``from_plain(type(v), json_round_trip(to_plain(v))) == v`` for every value of ``agent.model`` without raw
columns; unknown fields of a newer sender are ignored, missing fields take their defaults. Bytes are hex. Both ends of
the socket and the file format; standard library only.
"""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ProtocolError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON can carry it; columns (memoryviews) are left out as None."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, memoryview):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return [to_plain(item) for item in sorted(value)]
    return [to_plain(item) for item in value]


def from_plain(kind: type[T], plain: Any) -> T:
    """Rebuild a value of type ``kind``.

    Raises:
        ProtocolError: The plain value does not fit; the sentence names the place.
    """
    try:
        built: T = _build(kind, plain)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ProtocolError(f"cannot read a {kind.__name__}", why=str(error)) from error
    return built


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(kind: Any, plain: Any) -> Any:
    if isinstance(kind, NewType):
        return _build(kind.__supertype__, plain)
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return _build_union(get_args(kind), plain)
    if origin is not None:
        return _build_generic(origin, get_args(kind), plain)
    if kind is Any or kind is type(None):
        return plain
    if is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, plain)
    if kind is bytes:
        return bytes.fromhex(plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise TypeError(f"expected {kind.__name__}, found {type(plain).__name__}")
    return plain


def _build_dataclass(kind: type, plain: Any) -> Any:
    if not isinstance(plain, Mapping):
        raise TypeError(f"expected a {kind.__name__}, found {type(plain).__name__}")
    hints = _hints(kind)
    known = {field.name for field in fields(kind)}
    return kind(**{name: _build(hints[name], item) for name, item in plain.items() if name in known})


def _build_union(options: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and type(None) in options:
        return None
    rest = [option for option in options if option is not type(None)]
    if len(rest) == 1:
        return _build(rest[0], plain)
    # Scalars only (``str | int | float | None``): JSON keeps their types.
    return plain


def _build_generic(origin: Any, arguments: tuple[Any, ...], plain: Any) -> Any:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_build(arguments[0], item) for item in plain)
        return tuple(_build(kind, item) for kind, item in zip(arguments, plain, strict=True))
    if origin is frozenset:
        return frozenset(_build(arguments[0], item) for item in plain)
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {_key(arguments[0], key): _build(arguments[1], item) for key, item in plain.items()}
    raise TypeError(f"no way to build {origin!r}")


def _key(kind: Any, key: str) -> Any:
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(key)
    return int(key) if kind is int else key
