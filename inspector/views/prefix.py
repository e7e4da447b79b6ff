"""One prefix: what each group needs to resume it, what is there, and what it is worth.

Invariant: the numbers come from the resume rules; a piece of the chain that no link proves counts as missing. Read by
``kvctl inspect prefix SELECTOR``.
"""

from collections.abc import Mapping, Sequence

from agent.model.decision import Decision, Hit, Reason
from agent.model.groups import Group
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, Requirement, Status, Tokens
from agent.resume import Recovery, evaluate, recoverable

from ..explain import REASONS
from ..format import bar, count, plural, width_of_counts
from ..placing import Placed
from ..prefixes import Prefixes, PrefixRow, needed_ends
from ..report import Cell, Column, Facts, Json, Kind, Prose, Report, Table, Tone, Value
from ..retention import action, advice
from ..selector import find, parse
from ..symbols import FIVE, LEGEND, SHORT, sign
from . import recovery
from .common import NO_TABLE, group_name, head, key_text, notes
from .prefixes import item_of

_COLUMNS = (
    Column(header=""),
    Column(header="GROUP", elastic=True),
    Column(header="STATUS"),
    Column(header="NEEDS TOKENS"),
    Column(header="PAGES"),
    Column(header="MISSING TOKENS", blank="-"),
    Column(header="OWN HIT", kind=Kind.COUNT),
)


def prefix(
    snapshot: Snapshot, selector: str, *, chain: tuple[bytes, ...] | None = None, reveal: bool = False
) -> Report:
    """Return everything about the one prefix that ``selector`` names.

    Args:
        snapshot: With a page table.
        selector: Which prefix.
        chain: For ``tokens:``: the keys of these tokens at each hash unit, as the engine hashes them.
        reveal: Show whole keys.

    Raises:
        UsageError: It names none, or several.
    """
    wanted = parse(selector)
    if snapshot.pages is None:
        return Report(
            kind="prefix",
            data={**head(snapshot), "prefix": None},
            blocks=[Prose(lines=["unknown: no page table was read"])],
            notes=[*notes(snapshot), f"note: {NO_TABLE}"],
        )
    prefixes = Prefixes(snapshot)
    placed = prefixes.placed(find(prefixes, wanted, keys=chain))
    nodes = placed.chain
    row = prefixes.row(nodes, known=placed.known)
    hit = _hit(prefixes, nodes)
    ways = _ways(prefixes, nodes, row, hit)
    details = [_detail(prefixes, group, placed, row) for group in snapshot.geometry.groups]
    waterfall = [
        {
            "group": group_name(snapshot.geometry, step.group),
            "reason": step.reason.value,
            "from_tokens": step.from_tokens,
            "to_tokens": step.to_tokens,
            "round": step.round,
        }
        for step in hit.waterfall
    ]
    data = {
        **item_of(snapshot, row, reveal=reveal),
        "reason": None if hit.reason is None else hit.reason.value,
        "details": details,
        "waterfall": waterfall,
        "recoverable": None if ways is None else recovery.items(ways),
    }
    return Report(
        kind="prefix",
        data={**head(snapshot), "prefix": data},
        names=[key_text(row.key, reveal=True) if reveal else key_text(row.key, reveal=False)],
        blocks=[
            Facts(facts=[*_facts(snapshot, row, hit, details, placed, reveal=reveal), *_recoverable(ways)]),
            Table(columns=_COLUMNS, rows=[_row(item, hit) for item in details]),
            Prose(lines=[Cell(LEGEND, Tone.DIM)]),
        ],
        notes=notes(snapshot),
    )


def _hit(prefixes: Prefixes, chain: Mapping[Tokens, int]) -> Hit:
    """Ask the resume rules about a request that would extend this prefix by one token."""
    return evaluate(prefixes.snapshot.geometry, _keys(prefixes, chain), prefixes.nodes, limit=max(chain))


def _keys(prefixes: Prefixes, chain: Mapping[Tokens, int]) -> list[bytes]:
    """Return the key at each hash unit, an empty one where none is known."""
    unit = prefixes.snapshot.geometry.hash_unit
    return [prefixes.nodes.key[chain[at]].tobytes() if at in chain else b"" for at in range(unit, max(chain) + 1, unit)]


def _ways(prefixes: Prefixes, chain: Mapping[Tokens, int], row: PrefixRow, hit: Hit) -> tuple[Recovery, ...] | None:
    """Return what other ways of resuming would win; None where that is unknown, as usable is."""
    if row.usable is None or hit.usable is None:
        return None
    if row.usable >= row.logical:
        return ()
    geometry = prefixes.snapshot.geometry
    return recoverable(geometry, _keys(prefixes, chain), prefixes.nodes, limit=max(chain), usable=hit.usable)


def _recoverable(ways: Sequence[Recovery] | None) -> list[tuple[str, Sequence[str | Cell]]]:
    return [("RECOVER", recovery.lines(ways))] if ways else []


def _detail(prefixes: Prefixes, group: Group, placed: Placed, row: PrefixRow) -> Json:
    ends = needed_ends(group, row.logical)
    nodes, chain = prefixes.nodes, placed.chain
    there = [at for at in ends if at in chain and nodes.usable_pages[group.id, chain[at]] > 0]
    missing = prefixes.missing_ends(group, chain, ends, placed.known)
    unknown = [at for at in ends if at not in chain and at not in missing]
    return {
        "group": group.name,
        "id": group.id,
        "states": [state.value for state in group.states],
        "status": row.groups[group.id].value,
        "required": group.requirement is Requirement.REQUIRED,
        "needs_tokens": [ends[0] - group.block_size, ends[-1]] if ends else None,
        "needs_pages": len(ends),
        "has_pages": len(there),
        "missing_tokens": _ranges(missing, group.block_size),
        "unknown_tokens": _ranges(unknown, group.block_size),
    }


def _ranges(ends: Sequence[Tokens], block: Tokens) -> list[list[Tokens]]:
    """Return the token ranges that blocks with these ends cover, neighbours joined."""
    ranges: list[list[Tokens]] = []
    for end in ends:
        if ranges and ranges[-1][1] == end - block:
            ranges[-1][1] = end
        else:
            ranges.append([end - block, end])
    return ranges


def _row(item: Json, hit: Hit) -> list[Value]:
    missing = item["missing_tokens"]
    first = (
        f"{missing[0][0]:,}-{missing[0][1]:,}" + (f" +{len(missing) - 1}" if len(missing) > 1 else "")
        if missing
        else None
    )
    needs = item["needs_tokens"]
    block = (needs[1] - needs[0]) // item["needs_pages"] if needs else 1
    unplaced = sum((end - start) // block for start, end in item["unknown_tokens"])
    own = hit.per_group[item["id"]] if not unplaced and item["id"] < len(hit.per_group) else None
    return [
        sign(Status(item["status"])),
        item["group"],
        item["status"] if item["required"] else f"{item['status']} (optional)",
        f"{needs[0]:,}-{needs[1]:,}" if needs else "nothing",
        f"{item['has_pages']:,} of {item['needs_pages']:,}" + (f", {unplaced:,} unknown" if unplaced else ""),
        Cell(first, Tone.BAD),
        own,
    ]


def _facts(
    snapshot: Snapshot, row: PrefixRow, hit: Hit, details: Sequence[Json], placed: Placed, *, reveal: bool
) -> list[tuple[str, Sequence[str | Cell]]]:
    width = width_of_counts([row.tokens])

    def line(name: str, tokens: int | None) -> str:
        return f"{name:<8} {bar(None if tokens is None else tokens / row.tokens, 24)} {count(tokens):>{width}}"

    usable = row.usable
    stale = [group for group, status in row.groups.items() if status is Status.STALE]
    states = "  ".join(f"{SHORT[state]} {sign(row.states[state]).value}" for state in FIVE)
    facts: list[tuple[str, Sequence[str | Cell]]] = [
        ("PREFIX", [f"{key_text(row.key, reveal=reveal)}, {count(row.tokens)} tokens, {plural(row.pages, 'page')}"]),
        ("HIT", [line("cached", row.tokens), line("logical", row.logical), line("usable", usable)]),
        ("STATES", [states]),
    ]
    if stale:
        facts += _stale(snapshot, stale)
    elif usable is None:
        facts.append(("WHY", [_UNPROVEN]))
    elif usable < row.logical:
        by = placed.decision  # one about another boundary says nothing of this one
        told = by if by is not None and by.logical == row.logical else None
        facts += _why(snapshot, row, hit, details, told)
    else:
        whole = row.logical >= row.tokens - row.tokens % snapshot.geometry.alignment
        beyond = f"beyond token {count(row.logical)} no page is known at a boundary that can be hit"
        facts.append(("WHY", ["everything that is cached can be used" if whole else beyond]))
    if row.stranded:
        verb = "is" if row.stranded == 1 else "are"
        facts.append(("STRANDED", [f"{plural(row.stranded, 'page')} {verb} part of no usable hit now"]))
    return facts


_UNPROVEN = (
    "usable is unknown: a group is of a kind that kvctl does not know, the prefix was cached before kvctl followed "
    "the engine, which keeps no chain, or a page inside it is gone: nobody can say which pages lie before these"
)

_ONE_LOOK = (
    "One look at the table cannot tell whether it was evicted (window_hole, evicted) or never kept "
    "(not_retained). The decision of a request that used the prefix does:"
)


def _stale(snapshot: Snapshot, groups: Sequence[GroupId]) -> list[tuple[str, Sequence[str | Cell]]]:
    """Say that pages of this prefix are wrong, which matters more than what is missing: engines do reuse them."""
    names = ", ".join(group_name(snapshot.geometry, group) or str(group) for group in groups)
    why = f"pages in {names} must not be used: never computed, built on such pages, or of older weights"
    engine = "the engine knows nothing of that and may reuse them"
    lines = ["To see which pages they are, and how to take them out:", "kvctl validate"]
    return [("DANGER", [why, engine]), ("DO", lines)]


def _why(
    snapshot: Snapshot, row: PrefixRow, hit: Hit, details: Sequence[Json], decision: Decision | None
) -> list[tuple[str, Sequence[str | Cell]]]:
    """Say which group stops the prefix; one table shows that a page is missing, not how it went missing."""
    group, reason = hit.limiting_group, hit.reason
    if group is not None and row.groups.get(group) is Status.UNKNOWN:
        # The rules take a page that nobody can place for one that is gone: that is no reason to name.
        group, reason = row.limiting, None
    limiting = group_name(snapshot.geometry, group) or "no single group"
    missing: list[list[Tokens]] = next((item["missing_tokens"] for item in details if item["id"] == group), [])
    text = f"{limiting} limits" + (
        f": no page of this prefix is known in it for tokens {missing[0][0]:,}-{missing[0][1]:,}" if missing else ""
    )
    told = ""
    if reason in {None, Reason.UNKNOWN} and decision is not None and decision.limiting_group == group:
        reason, told = decision.reason, f", says decision {decision.id}"
    if reason is None or reason is Reason.UNKNOWN:
        unnamed = any(item.chain is None for item in snapshot.decisions or ())  # one of these may be the one
        lines = [_ONE_LOOK, "kvctl decisions" if unnamed else "kvctl decisions -f   while the engine runs"]
        return [("WHY", [text]), ("DO", lines)]
    entry = REASONS[reason]
    more = f"kvctl explain {decision.id}" if told and decision is not None else f"kvctl explain {reason}"
    dense = advice(snapshot.geometry, [decision]) if told and decision is not None else []
    return [
        ("WHY", [text, f"{reason}{told}: {entry.title}"]),
        ("DO", [action(snapshot.engine.engine, snapshot.geometry, reason), *dense, more]),
    ]
