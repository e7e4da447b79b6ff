"""Groups: what each holds, how full it is, and how much reuse it costs.

Invariant: one row for each group, ordered by id. Read by ``kvctl inspect groups`` and the dashboard.
"""

from agent.model.decision import Reason
from agent.model.groups import Group
from agent.model.snapshot import Snapshot
from agent.model.states import Requirement, ResumeKind

from ..explain import REASONS
from ..format import count, percent, plural
from ..occupancy import GroupPages, Occupancy, occupancy
from ..report import Cell, Column, Facts, Json, Kind, Report, Table, Tone, Value
from ..retention import action, advice, in_force
from ..retention import unit as retention_unit
from ..reuse import Reuse, sum_up
from .common import NO_TABLE, capture_line, engine_line, group_name, head, notes
from .danger import danger, wrong_among

_COLUMNS = (
    Column(header="GROUP", elastic=True),
    Column(header="STATE", elastic=True),
    Column(header="RESUMES", wide=True),
    Column(header="PAGES", kind=Kind.COUNT),
    Column(header="HELD", kind=Kind.COUNT, wide=True),
    Column(header="STRANDED", kind=Kind.COUNT),
    Column(header="SIZE", kind=Kind.BYTES),
    Column(header="LOST", kind=Kind.COUNT),
    Column(header="LIMITS", kind=Kind.COUNT),
    Column(header="BLOCK", kind=Kind.COUNT, wide=True),
    Column(header="LAYERS", kind=Kind.COUNT, wide=True),
    Column(header="LONGEST", kind=Kind.COUNT, wide=True),
    Column(header="NEEDED", wide=True),
    Column(header="SPEC", wide=True),
)


def groups(snapshot: Snapshot) -> Report:
    """Return one row for each group."""
    found = occupancy(snapshot)
    reuse = None if snapshot.decisions is None else sum_up(snapshot.decisions)
    rows, items = [], []
    for group in snapshot.geometry.groups:
        pages = None if found is None else found.groups[group.id]
        lost, limits = _losses(group, reuse)
        rows.append(_row(group, pages, lost, limits))
        items.append(_item(group, pages, lost, limits))
    geometry = snapshot.geometry
    return Report(
        kind="groups",
        data={
            **head(snapshot),
            "hash_unit": geometry.hash_unit,
            "alignment": geometry.alignment,
            "partial_hits": geometry.partial_hits,
            "retention_interval": geometry.retention_interval,
            "groups": items,
        },
        items=items,
        item_kind="group",
        names=[group.name for group in geometry.groups],
        blocks=[
            Facts(facts=[("ENGINE", [engine_line(snapshot)]), ("READ", [capture_line(snapshot)])]),
            Table(columns=_COLUMNS, rows=rows, empty="the engine has no cache groups"),
            Facts(facts=_summary(snapshot, found, reuse)),
        ],
        notes=[*notes(snapshot), *([f"note: {NO_TABLE}"] if found is None else [])],
    )


def resumes(group: Group) -> str:
    """Return in a few words what a group needs to resume at t."""
    block = f"{group.block_size}-token pages"
    match group.kind:
        case ResumeKind.FULL:
            return f"all, {block}"
        case ResumeKind.WINDOW:
            return f"last {group.window_past_tokens or 0:,}, {block}"
        case ResumeKind.CHUNKED:
            return f"chunk of {group.chunk_tokens or 0:,}"
        case ResumeKind.RECURRENT:
            return "checkpoint at t"
        case ResumeKind.NONE:
            return "needs nothing"
        case ResumeKind.UNKNOWN:
            return "unknown"


def _losses(group: Group, reuse: Reuse | None) -> tuple[int | None, int | None]:
    if reuse is None or not reuse.explained:
        return None, None
    return sum(tokens for (_, where), tokens in reuse.lost.items() if where == group.id), reuse.degraded[group.id]


def _row(group: Group, pages: GroupPages | None, lost: int | None, limits: int | None) -> list[Value]:
    def tone(value: int | None) -> Cell:
        return Cell(value, Tone.BAD if value else Tone.PLAIN)

    return [
        group.name,
        "+".join(group.states),
        resumes(group),
        None if pages is None else pages.cached,
        None if pages is None else pages.held,
        _stranded(pages),
        None if pages is None else pages.bytes,
        tone(lost),
        tone(limits),
        group.block_size,
        len(group.layers),
        None if pages is None else pages.longest,
        group.requirement.value,
        group.spec,
    ]


def _stranded(pages: GroupPages | None) -> Value:
    """Return the number, or what is certain and what cannot be told: ``12+40?``."""
    if pages is None or pages.unplaced is None:
        return None
    if pages.unplaced:
        return Cell(f"{pages.stranded_at_least:,}+{pages.unplaced:,}?", Tone.WARN)
    return Cell(pages.stranded, Tone.BAD if pages.stranded else Tone.PLAIN)


def _item(group: Group, pages: GroupPages | None, lost: int | None, limits: int | None) -> Json:
    return {
        "id": group.id,
        "name": group.name,
        "states": [state.value for state in group.states],
        "resume_kind": group.kind.value,
        "requirement": group.requirement.value,
        "block_tokens": group.block_size,
        "tokens_per_entry": group.tokens_per_entry,
        "window_past_tokens": group.window_past_tokens,
        "chunk_tokens": group.chunk_tokens,
        "draft": group.draft,
        "layers": [layer.name for layer in group.layers],
        "spec": group.spec,
        "page_bytes": group.page_bytes,
        "pages_cached": None if pages is None else pages.cached,
        "pages_held": None if pages is None else pages.held,
        "pages_in_transit": None if pages is None else pages.in_transit,
        "pages_stale": None if pages is None else pages.stale,
        "pages_stranded": None if pages is None else pages.stranded,
        "pages_unplaced": None if pages is None else pages.unplaced,
        "bytes_cached": None if pages is None else pages.bytes,
        "bytes_stranded": None if pages is None else pages.stranded_bytes,
        "longest_tokens": None if pages is None else pages.longest,
        "lost_tokens": lost,
        "limits_decisions": limits,
    }


def _summary(snapshot: Snapshot, found: Occupancy | None, reuse: Reuse | None) -> list[tuple[str, list[str | Cell]]]:
    geometry = snapshot.geometry
    unit = f"hits are multiples of {count(geometry.alignment)} tokens; shorter prompts never hit"
    kept = in_force(geometry)
    if kept is not None:
        now, block = count(geometry.retention_interval), count(retention_unit(geometry))
        unit += f". Windows and checkpoints are kept {kept} (retention interval {now}; others are multiples of {block})"
    facts: list[tuple[str, list[str | Cell]]] = [*danger(snapshot), ("UNIT", [unit])]
    needed = [group for group in geometry.groups if group.requirement is not Requirement.REQUIRED]
    if needed:
        facts.append(("OPTIONAL", [", ".join(f"{group.name} ({group.requirement})" for group in needed)]))
    if found is not None and found.stranded is not None and found.cached:
        share = percent(found.stranded / found.cached)
        facts.append(
            (
                "STRANDED",
                [f"{count(found.stranded)} of {count(found.cached)} cached pages ({share}) are part of no usable hit"],
            )
        )
    unplaced = 0 if found is None else sum(one.unplaced or 0 for one in found.groups.values())
    if unplaced:
        pages = plural(unplaced, "page")
        why = f"of {pages} (?) nobody can tell: they were cached before this reader joined, by several calls"
        facts.append(("STRANDED", [why]))
    if reuse is not None and reuse.lost and (reuse.degraded or not wrong_among(geometry, snapshot.decisions)):
        (reason, group), tokens = max(reuse.lost.items(), key=lambda item: item[1])
        where = group_name(geometry, group) or "no single group"
        facts.append(("LIMITS", [f"{where} lost most: {count(tokens)} tokens, {reason}: {REASONS[reason].title}"]))
        more: list[str] = []
        if reason is Reason.NOT_RETAINED:
            more = [action(snapshot.engine.engine, geometry, reason), *advice(geometry, snapshot.decisions or ())]
        facts.append(("DO", [*more, f"kvctl explain {reason}"]))
    return facts
