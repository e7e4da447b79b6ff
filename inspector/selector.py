"""Selectors: the words that name what to look at or to take out.

Invariant: parsing needs no engine; finding needs a page table and says clearly when there is nothing or more than
one. Used by ``inspect prefix``; ``invalidate`` and ``validate`` parse with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.errors import UsageError
from agent.model.snapshot import RequestInfo
from agent.model.states import Tokens

from .format import clean
from .naming import called
from .prefixes import SHORT_KEY, Prefixes


class SelectorKind(StrEnum):
    """The kinds of selector."""

    HASH = "hash"
    REQUEST = "request"
    TOKENS = "tokens"
    PAGE = "page"
    GROUP = "group"
    STATE = "state"
    STALE = "stale"
    ALL = "all"


ONE_PREFIX = (SelectorKind.HASH, SelectorKind.REQUEST, SelectorKind.PAGE)
"""Kinds that name a single prefix in a page table."""


_FIND = {
    "hash": ("prefix", "to list them: kvctl inspect prefixes"),
    "request": ("request", "to list them: kvctl inspect requests"),
    "tokens": ("file", "write a JSON list of token ids to a file, then tokens:FILE; tokens:- reads it from stdin"),
    "page": ("page", "to list them: kvctl inspect pages"),
    "group": ("group", "to list them: kvctl inspect groups"),
    "state": ("state", "to list them: kvctl inspect states"),
}
"""What a kind without a value lacks, and where to find one."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One selector."""

    kind: SelectorKind
    value: str = ""

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.kind}:{self.value}" if self.value else str(self.kind)

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages that it names: ``page:33`` one, ``page:15,16`` two; none for other kinds."""
        if self.kind is not SelectorKind.PAGE:
            return ()
        return tuple(int(part) for part in self.value.split(","))


_HEX = frozenset("0123456789abcdefABCDEF")
_KEY_DIGITS = 32
"""Digits of a whole key."""

_BARE_DIGITS = 8
"""Digits from which a bare text is the beginning of a key and nothing else; more where all of them are decimal."""


def is_bare_hash(text: str) -> bool:
    """Whether a text without ``hash:`` can only be the beginning of a key, as tables show one."""
    least = SHORT_KEY if text.isdecimal() else _BARE_DIGITS
    return least <= len(text) <= _KEY_DIGITS and set(text) <= _HEX


def parse(text: str) -> Selector:
    """Read a selector; a bare hash is one where it can be nothing else.

    Raises:
        UsageError: It is none.
    """
    name, colon, value = text.partition(":")
    if name in {SelectorKind.STALE, SelectorKind.ALL} and not colon:
        return Selector(SelectorKind(name))
    if name in _FIND and not value:
        what, find = _FIND[name]
        raise UsageError(f"{name}: names no {what}", next_step=find)
    if is_bare_hash(text):
        return Selector(SelectorKind.HASH, text)
    if text and set(text) <= _HEX:
        raise UsageError(
            f"{text[:60]!r} alone may be the beginning of a hash, or something else",
            why=f"only {_BARE_DIGITS} digits or more ({SHORT_KEY}, where all are decimal) are a hash by themselves",
            next_step=f"say which: hash:{text[:40]}" + (f" or page:{text[:40]}" if text.isdecimal() else ""),
        )
    if name not in set(SelectorKind) or not value or name in {SelectorKind.STALE, SelectorKind.ALL}:
        raise UsageError(
            f"{clean(text)[:60]!r} is no selector",
            next_step="use hash:HEX, request:ID, tokens:FILE, page:ID, group:NAME, state:NAME, stale or all",
        )
    kind = SelectorKind(name)
    if kind is SelectorKind.HASH and (len(value) > _KEY_DIGITS or not set(value) <= _HEX):
        wrong = "is not hexadecimal" if not set(value) <= _HEX else f"has more than the {_KEY_DIGITS} digits of a key"
        raise UsageError(f"hash:{clean(value)[:40]} {wrong}", next_step="kvctl inspect prefixes shows hashes")
    if kind is SelectorKind.PAGE and not all(part.isascii() and part.isdigit() for part in value.split(",")):
        raise UsageError(f"page:{clean(value)[:40]} is not a page number", next_step="kvctl inspect pages shows pages")
    return Selector(kind, value)


def find(prefixes: Prefixes, selector: Selector, *, keys: tuple[bytes, ...] | None = None) -> Mapping[Tokens, int]:
    """Return the chain (node by token position) of the one prefix that a selector names.

    Args:
        prefixes: The tree.
        selector: Which prefix.
        keys: For ``tokens:``: the keys of these tokens at each hash unit.

    Raises:
        UsageError: It names none, or several.
    """
    match selector.kind:
        case SelectorKind.HASH:
            return prefixes.nodes.ancestors(_by_hash(prefixes, selector))
        case SelectorKind.PAGE if len(selector.pages) == 1:
            return prefixes.nodes.ancestors(_by_page(prefixes, selector.pages[0]))
        case SelectorKind.REQUEST:
            return _by_request(prefixes, selector.value)
        case SelectorKind.TOKENS if keys is not None:
            return _by_keys(prefixes, keys)
        case _:
            raise UsageError(
                f"{selector} does not name a single prefix", next_step="use hash:HEX, request:ID or page:ID"
            )


def _by_keys(prefixes: Prefixes, keys: tuple[bytes, ...]) -> Mapping[Tokens, int]:
    nodes = prefixes.nodes
    found = {int(nodes.tokens[node]): node for key in keys if (node := nodes.find(key)) is not None}
    if not found:
        raise UsageError(
            "nothing of these tokens is cached",
            why="nobody sent them, they were evicted, or they were sent with another salt or adapter",
            next_step="to list what is cached now: kvctl inspect prefixes",
        )
    return found


def _by_hash(prefixes: Prefixes, selector: Selector) -> int:
    found = prefixes.nodes.starting_with(selector.value)
    if not found:
        raise UsageError(
            f"no cached prefix has a key that begins with {selector.value}",
            why="it was evicted or taken out, or it comes from another engine or another saved file",
            next_step="to list what is cached now: kvctl inspect prefixes",
        )
    if len(found) > 1:
        some = ", ".join(prefixes.nodes.key[node].tobytes().hex()[:16] for node in found[:3])
        raise UsageError(
            f"{len(found)} keys begin with {selector.value}", why=f"for example {some}", next_step="give more digits"
        )
    return found[0]


def _by_page(prefixes: Prefixes, page: int) -> int:
    of_page = prefixes.nodes.of_page
    if page >= len(of_page):
        raise UsageError(
            f"there is no page {page}",
            why=f"the pool has pages 0 to {len(of_page) - 1}",
            next_step="kvctl inspect pages",
        )
    node = int(of_page[page])
    if node < 0:
        raise UsageError(
            f"page {page} carries no key", why="it is empty, or not to be shared", next_step="kvctl inspect pages"
        )
    return node


def _by_request(prefixes: Prefixes, name: str) -> Mapping[Tokens, int]:
    request = find_request(prefixes.snapshot.requests, name)
    of_page = prefixes.nodes.of_page
    pages = {page for table in request.tables or () for page in table if 0 <= page < len(of_page)}
    nodes = [int(of_page[page]) for page in pages if of_page[page] >= 0]
    if not nodes:
        raise UsageError(
            f"request {clean(request.id)[:60]} has no page with a key",
            why="it waits, or it has not filled a page yet"
            if request.tables is not None
            else "its tables were not read",
            next_step="kvctl inspect requests shows what each request holds",
        )
    chain: dict[Tokens, int] = {}
    for node in nodes:
        chain.update(prefixes.nodes.ancestors(node))
    return chain


def find_request(requests: tuple[RequestInfo, ...] | None, name: str) -> RequestInfo:
    """Return the request with this id, as the engine writes it, or else as tables show it.

    Raises:
        UsageError: There is none, or the name fits several equally well.
    """
    found = called(name, requests or (), lambda request: request.id)
    ids = {request.id for request in found}
    if len(ids) == 1:
        return found[0]
    if ids:
        raise UsageError(
            f"several requests are called {clean(name)[:60]}",
            why=f"{len(ids)} ids look like it",
            next_step="kvctl inspect requests -o json has every id whole",
        )
    raise UsageError(
        f"the engine has no request {clean(name)[:60]}",
        why="it has finished, or it comes from another engine"
        if requests
        else "no requests were read, or there are none",
        next_step="to list them: kvctl inspect requests",
    )
