"""Revalidation at use: are the pages in a request's tables still what was bound?

Invariant: reads only. Two questions that do not rest on each other: has a page's generation moved, and does a page
carry the key of another prefix. Called by the engine before anything of a request is read or written.
"""

from dataclasses import dataclass

from .geometry import GroupName, GroupSpec
from .pages import NULL, Pages
from .request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Pages that were bound for a request and belonged to somebody else when they were to be used."""

    step: int
    request: str
    moved: tuple[tuple[int, int, int], ...]
    """Page, its generation when it was checked, its generation now."""
    exchanged: tuple[tuple[int, int], ...]
    """Page that is bound and carries another key, and the page that has the right key now (the null page: none)."""

    @property
    def pages(self) -> tuple[int, ...]:
        """All pages concerned."""
        return tuple(sorted({page for page, *_ in self.moved} | {page for page, _ in self.exchanged}))


def revalidate(pages: Pages, specs: dict[GroupName, GroupSpec], request: Request, step: int) -> Violation | None:
    """Return what moved under a request, None where nothing did."""
    moved = [
        (page, generation, pages.generation[page])
        for page, generation in request.bound()
        if pages.generation[page] != generation
    ]
    exchanged = []
    chain = request.keys()
    for name, table in request.tables.items():
        spec = specs[name]
        for block, page in enumerate(table):
            key = pages.key[page] if page else None
            # Without a key it is this request's own, or was invalidated while it is held: both are in order.
            if key is not None and (end := (block + 1) * spec.block) <= len(request.tokens) and key != chain.at(end):
                exchanged.append((page, pages.find(spec.id, chain.at(end)) or NULL))
    if not moved and not exchanged:
        return None
    return Violation(step=step, request=request.id, moved=tuple(moved), exchanged=tuple(exchanged))
