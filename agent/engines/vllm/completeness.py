"""Completeness check: does this vLLM change pages only where the feed looks?

Invariant: reads source, runs nothing, changes nothing. The feed is exact only if every place that writes a block's
count, key or null mark, or one of the pool's two maps, is known: hooked, or next to something hooked. The places found
in the source of the types in use are compared with :data:`ALLOWED`; one more turns the feed off and is named. Called
once at start by the vLLM adapter.

Checked by hand for 0.28-0.33 (the places are the same in 0.30-0.33; 0.28 lacks two).
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeGuard

PAGE_FIELDS = frozenset({"ref_cnt", "_block_hash", "_block_hash_num_tokens", "block_hash", "is_null", "block_id"})
MAPS = frozenset({"cached_block_hash_to_block", "cached_block_hashes_by_block", "_cache"})
POOL_FIELDS = frozenset({"cached_block_hash_to_block", "cached_block_hashes_by_block", "_cache", "null_block"})
MUTATORS = frozenset(
    {
        "set_block_hash",
        "reset_hash",
        "incr_ref",
        "decr_ref",
        "_insert_block_hash",
        "_remove_cached_block_hashes",
        "_maybe_evict_cached_block",
    }
)
CHANGES = frozenset(
    {"insert", "pop", "clear", "update", "setdefault", "add", "discard", "remove", "append", "extend", "popitem"}
)
SETTERS = frozenset({"setattr", "__setattr__", "replace"})

_REGISTERS = frozenset({"calls _insert_block_hash", "calls _remove_cached_block_hashes"})
_KEY = frozenset({"sets _block_hash", "sets _block_hash_num_tokens"})

ALLOWED: Mapping[str, frozenset[str]] = {
    # the map of keys: changed by the pool only
    "BlockHashToBlockMap.__init__": frozenset({"sets _cache"}),
    "BlockHashToBlockMap.insert": frozenset({"changes _cache"}),
    "BlockHashToBlockMap.pop": frozenset({"changes _cache", "calls _cache.pop"}),
    # a block: called by the pool only
    "KVCacheBlock.set_block_hash": _KEY,
    "KVCacheBlock.reset_hash": _KEY,
    "KVCacheBlock.incr_ref": frozenset({"sets ref_cnt"}),
    "KVCacheBlock.decr_ref": frozenset({"sets ref_cnt"}),
    # the pool: hooked, or called by something hooked
    "BlockPool.__init__": frozenset(
        {
            "sets cached_block_hash_to_block",
            "sets cached_block_hashes_by_block",
            "sets null_block",
            "sets is_null",
        }
    ),
    "BlockPool.cache_full_blocks": _REGISTERS | {"calls set_block_hash", "calls cached_block_hash_to_block.insert"},
    "BlockPool.cache_partial_block": _REGISTERS,
    "BlockPool.move_block_hashes": _REGISTERS,
    "BlockPool._remove_cached_block_hashes": frozenset(
        {"calls cached_block_hash_to_block.pop", "calls cached_block_hashes_by_block.pop", "calls reset_hash"}
    ),
    "BlockPool._insert_block_hash": frozenset(
        {
            "calls cached_block_hash_to_block.insert",
            "calls cached_block_hashes_by_block.setdefault",
            "calls set_block_hash",
            "calls setdefault.add",
        }
    ),
    "BlockPool._maybe_evict_cached_block": frozenset(
        {"calls _remove_cached_block_hashes", "calls cached_block_hash_to_block.pop", "calls reset_hash"}
    ),
    "BlockPool.get_new_blocks": frozenset({"calls _maybe_evict_cached_block", "sets ref_cnt"}),
    "BlockPool.touch": frozenset({"sets ref_cnt"}),
    "BlockPool.free_blocks": frozenset({"sets ref_cnt"}),
    "BlockPool.unpin_blocks": frozenset({"sets ref_cnt"}),
    "BlockPool.evict_blocks": frozenset({"calls _maybe_evict_cached_block"}),
    "BlockPool.reset_prefix_cache": frozenset(
        {"calls cached_block_hashes_by_block.clear", "calls reset_hash", "sets cached_block_hash_to_block"}
    ),
    # copy-on-write: the block was allocated, or its keys were moved, by a hooked call just before
    "SingleTypeKVCacheManager._apply_cow": frozenset({"sets ref_cnt"}),
    "MambaManager.allocate_new_blocks": frozenset({"sets ref_cnt"}),
    # hooked in the manager itself
    "MambaManager._cache_partial_tail_block": frozenset({"calls _maybe_evict_cached_block"}),
}
"""Qualified name -> what it may do to pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Result of the check."""

    reason: str | None
    """Why the feed must stay off; None where every place is known."""
    sites: Mapping[str, frozenset[str]]
    """Every place that was found."""

    @classmethod
    def of(cls, pool: Any, owners: Sequence[Any] = ()) -> "Completeness":
        """Check the types in use.

        Args:
            pool: The engine's block pool.
            owners: Everything else that handles its blocks: managers, coordinator, scheduler, connector.
        """
        block_map = pool.cached_block_hash_to_block
        classes = _classes([pool, pool.blocks[0], block_map, *owners])
        sites: dict[str, frozenset[str]] = {}
        unreadable: list[str] = []
        for file, names in _files(classes, unreadable).items():
            found = sites_in(file)
            sites.update({name: what for name, what in found.items() if name.split(".")[0] in names or "." not in name})
        for name, function in _foreign_functions(classes, [pool, *owners]):
            source = _source(function)
            if source is None:
                unreadable.append(name)
            else:
                merged = frozenset().union(*sites_in(source).values())
                if merged:
                    sites[f"{name} (patched)"] = merged
        return cls(reason=_judge(sites, unreadable), sites=sites)


def _judge(sites: Mapping[str, frozenset[str]], unreadable: Sequence[str]) -> str | None:
    if unreadable:
        return f"the source of {', '.join(sorted(unreadable)[:3])} cannot be read, so its effect on pages is not known"
    unknown = {name: what - ALLOWED.get(name, frozenset()) for name, what in sites.items()}
    unknown = {name: what for name, what in unknown.items() if what}
    if not unknown:
        return None
    first = min(unknown)
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return f"{first} {', '.join(sorted(unknown[first]))}{more}: this engine changes pages in a place that is not known"


def _classes(objects: Iterable[Any]) -> list[type]:
    seen: dict[type, None] = {}
    for one in objects:
        for cls in type(one).__mro__:
            if cls.__module__ not in ("builtins", "abc", "typing"):
                seen[cls] = None
    return list(seen)


def _files(classes: Iterable[type], unreadable: list[str]) -> dict[str, set[str]]:
    """Return module source -> names of the classes in use that it defines."""
    found: dict[str, set[str]] = {}
    sources: dict[str, str | None] = {}
    for cls in classes:
        module = cls.__module__
        if module not in sources:
            sources[module] = _source(inspect.getmodule(cls))
        source = sources[module]
        if source is None:
            unreadable.append(f"{module}.{cls.__qualname__}")
        else:
            found.setdefault(source, set()).add(cls.__qualname__.split(".")[0])
    return found


def _foreign_functions(classes: Iterable[type], objects: Iterable[Any]) -> list[tuple[str, FunctionType]]:
    """Return functions that somebody put into these classes or objects from another file."""
    found: list[tuple[str, FunctionType]] = []
    for cls in classes:
        home = getattr(inspect.getmodule(cls), "__file__", None)
        for name, value in vars(cls).items():
            function = inspect.unwrap(value) if callable(value) else value
            if _is_foreign(function) and function.__code__.co_filename not in (home, "<string>"):
                found.append((f"{cls.__name__}.{name}", function))
    for one in objects:
        for name in {name for cls in type(one).__mro__ for name, value in vars(cls).items() if _is_function(value)}:
            value = getattr(one, name)  # never its __dict__: that would slow the engine down for good (Patches)
            if _is_foreign(value):
                found.append((f"{type(one).__name__}.{name}", value))
    return found


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _is_foreign(value: Any) -> TypeGuard[FunctionType]:
    """Ours only observe, and may have been loaded from memory, without source."""
    return isinstance(value, FunctionType) and value.__module__.split(".")[0] != __name__.split(".")[0]


def _source(thing: Any) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return None


# ------------------------------------------------------------------ source


def sites_in(source: str) -> dict[str, frozenset[str]]:
    """Return qualified name of a function -> what it does to pages, for every function that does anything."""
    if not any(word in source for word in (*PAGE_FIELDS, *MAPS, *MUTATORS)):
        return {}
    visitor = _Sites()
    visitor.visit(ast.parse(source))
    return {name: frozenset(what) for name, what in visitor.found.items()}


class _Sites(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}
        self._path: list[str] = []

    def _note(self, what: str) -> None:
        self.found.setdefault(".".join(self._path) or "<module>", set()).add(what)

    def _enter(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._target(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._target(node.target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._target(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._target(target)

    def visit_For(self, node: ast.For) -> None:
        self._target(node.target)
        self.generic_visit(node)

    def _target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._target(element)
        elif isinstance(target, ast.Starred):
            self._target(target.value)
        elif isinstance(target, ast.Attribute):
            if target.attr in PAGE_FIELDS | POOL_FIELDS and not self._creates(target):
                self._note(f"sets {target.attr}")
        elif isinstance(target, ast.Subscript):
            for name in _names(target):
                if name in MAPS:
                    self._note(f"changes {name}")

    def _creates(self, target: ast.Attribute) -> bool:
        """An object that names a field of its own in its constructor is not a page."""
        own = isinstance(target.value, ast.Name) and target.value.id == "self"
        return own and self._path[-1:] == ["__init__"] and self._path[0] not in {"BlockPool", "BlockHashToBlockMap"}

    def visit_Call(self, node: ast.Call) -> None:
        names = _names(node.func)
        if names:
            last = names[-1]
            if last in MUTATORS:
                self._note(f"calls {last}")
            elif last in CHANGES and MAPS & set(names[:-1]):
                self._note(f"calls {'.'.join(names[-2:])}")
            elif last in SETTERS and (field := _constant(node.args)) in PAGE_FIELDS:
                self._note(f"sets {field}")
        self.generic_visit(node)


def _constant(arguments: Sequence[ast.expr]) -> object:
    """Return the second argument if it is a constant: the field that ``setattr`` sets."""
    second = arguments[1] if len(arguments) > 1 else None
    return second.value if isinstance(second, ast.Constant) else None


def _names(node: ast.expr) -> list[str]:
    """Return the names in a chain of attributes, calls and subscripts: ``a.b[0].c()`` -> a, b, c."""
    found: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        found.append(node.id)
    return found[::-1]
