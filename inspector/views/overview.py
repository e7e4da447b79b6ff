"""Overview: logical against usable at one glance, which group limits and why, and what to do.

Invariant: works without a page table; what is missing then says so. Read by ``kvctl inspect`` and the dashboard.
"""

from agent.model.decision import Phase, Reason
from agent.model.snapshot import Snapshot

from ..explain import REASONS
from ..format import UNKNOWN, bar, count, percent, plural, size, width_of_counts
from ..report import Block, Cell, Facts, Json, Report, Tone
from ..retention import action
from ..reuse import Reuse, sum_up
from .common import capture_line, engine_line, group_name, head, notes, off_reasons, usable_pages
from .danger import beyond, danger, wrong_among

GOOD_RATIO = 0.95
"""Usable over logical tokens above which nothing needs to be done."""

_ROUTE = 'recovered_tokens{route="'
"""How the counter of a recovery route begins."""


def overview(snapshot: Snapshot) -> Report:
    """Return the overview of one engine."""
    decisions = snapshot.decisions
    reuse = None if decisions is None else sum_up(decisions)
    blocks: list[Block] = [
        Facts(facts=[("ENGINE", [engine_line(snapshot)]), ("READ", [capture_line(snapshot)])]),
        Facts(facts=[*_reuse_facts(snapshot, reuse), *_recovery_facts(snapshot)]),
        Facts(facts=[*_pool_facts(snapshot), *_request_facts(snapshot), *_agent_facts(snapshot)]),
    ]
    return Report(
        kind="overview",
        data={**head(snapshot), "reuse": _reuse_data(snapshot, reuse), **_rest_data(snapshot)},
        names=[snapshot.engine.name or str(snapshot.engine.pid)],
        blocks=blocks,
        notes=notes(snapshot),
    )


def _reuse_facts(snapshot: Snapshot, reuse: Reuse | None) -> list[tuple[str, list[str | Cell]]]:
    if not snapshot.geometry.caching:
        return [("REUSE", [Cell("this engine runs without prefix caching: nothing can be reused", Tone.WARN)])]
    if reuse is None:
        return [("REUSE", [f"{UNKNOWN}: no decisions were read"])]
    if not reuse.decisions:
        return [("REUSE", ["no request has been admitted yet: send one and look again"])]
    if not reuse.explained:
        text = f"{plural(reuse.decisions, 'decision')}, none with a page table: logical hits are {UNKNOWN}"
        reused = sum(item.engine_usable for item in snapshot.decisions or ())
        looked = sum(item.lookup_tokens for item in snapshot.decisions or ())
        line = f"reused by the engine  {bar(reused / looked if looked else None)} {count(reused)} of {count(looked)}"
        hint = [
            "kvctl inspect prefixes",
            "  what of the cache can be used right now",
            "kvctl decisions -f",
            "  explains each request from now on",
        ]
        return [("REUSE", [text, line]), *danger(snapshot), ("DO", [*hint])]
    wrong = wrong_among(snapshot.geometry, snapshot.decisions)
    why = _why(snapshot, reuse, wrong=bool(wrong))
    facts = [("REUSE", _bars(reuse, beyond(wrong))), *danger(snapshot), ("WHY", why)]
    # What limited a prefix that was reused all the same is no loss: nothing is to be done about it.
    do = [] if wrong and not reuse.degraded else _what_to_do(snapshot, reuse)
    return [*facts, ("DO", do)] if do else facts


def _bars(reuse: Reuse, extra: int) -> list[str | Cell]:
    """Return the two hits, and apart what was reused where that was more than could be (``extra`` tokens)."""
    healthy = (reuse.usable_of_logical or 1.0) >= GOOD_RATIO
    left_out = reuse.decisions - reuse.explained
    title = f"last {plural(reuse.decisions, 'decision')}, {count(reuse.lookup)} tokens looked up (100%)"
    if left_out:
        of = f"{reuse.explained:,} of the last {plural(reuse.decisions, 'decision')}"
        title = f"{of}, {count(reuse.lookup)} tokens looked up (100%); the others had no page table"

    width = width_of_counts([reuse.logical, reuse.usable, reuse.external], 11)

    def line(name: str, tokens: int, ratio: float | None) -> str:
        return f"{name:<16}{bar(ratio, 28)} {percent(ratio):>5}  {count(tokens):>{width}}"

    lines: list[str | Cell] = [
        title,
        line("logical hit", reuse.logical, reuse.logical_ratio),
    ]
    if extra:
        usable = reuse.usable - extra
        lines.append(line("usable hit", usable, usable / reuse.lookup if reuse.lookup else None))
        lines.append(Cell(line("reused", reuse.usable, reuse.usable_ratio), Tone.BAD))
    else:
        tone = Tone.GOOD if healthy else Tone.BAD
        lines.append(Cell(line("usable hit", reuse.usable, reuse.usable_ratio), tone))
    if reuse.external:
        lines.append(line("other tiers", reuse.external, reuse.external / reuse.lookup))
    return lines


def _why(snapshot: Snapshot, reuse: Reuse, *, wrong: bool) -> list[str | Cell]:
    absent = _absent(reuse)
    if reuse.by_design:
        absent.append(f"{plural(reuse.by_design, 'token')} by design: boundaries, last tokens, the margin of drafts")
    degraded = sum(reuse.degraded.values())
    if not degraded and reuse.usable >= reuse.logical - reuse.by_design:
        whole = "more was reused than could be used" if wrong else "everything that was cached could be used"
        return [whole if reuse.logical else "nothing of it was cached", *absent]
    worst, times = max(reuse.degraded.items(), key=lambda item: item[1], default=(None, 0))
    name = group_name(snapshot.geometry, worst)
    where = f", in {count(degraded)} of {plural(reuse.explained, 'decision')}" if degraded else ""
    lines: list[str | Cell] = [f"{count(reuse.short)} tokens were cached and could not be used{where}"]
    if name is not None:
        lines.append(f"{name} limits {count(times)} of them")
    width = width_of_counts(reuse.lost.values())
    for (reason, group), tokens in sorted(reuse.lost.items(), key=lambda item: -item[1])[:3]:
        place = group_name(snapshot.geometry, group) or "no single group"
        lines.append(f"{count(tokens):>{width}} {reason} in {place}: {REASONS[reason].title}")
    return [*lines, *absent]


def _absent(reuse: Reuse) -> list[str]:
    """Say why the rest was not cached at all."""
    if not reuse.absent:
        return []
    parts = ", ".join(f"{reason} {count(tokens)}" for reason, tokens in reuse.absent.most_common(3))
    return [f"{count(sum(reuse.absent.values()))} tokens were not cached at all: {parts}"]


def _main_reason(reuse: Reuse) -> Reason | None:
    by_reason: dict[Reason, int] = {}
    for (reason, _), tokens in reuse.lost.items():
        by_reason[reason] = by_reason.get(reason, 0) + tokens
    if not by_reason and not reuse.logical:  # nothing was there: what could be changed about that
        by_reason = {reason: tokens for reason, tokens in reuse.absent.items() if reason is not Reason.COLD}
    return max(by_reason, key=lambda reason: by_reason[reason], default=None)


def _what_to_do(snapshot: Snapshot, reuse: Reuse) -> list[str | Cell]:
    reason = _main_reason(reuse)
    if reason is None:
        return []
    return [
        action(snapshot.engine.engine, snapshot.geometry, reason),
        f"kvctl explain {reason}",
        f"kvctl decisions --where reason={reason}",
    ]


def _recovery_facts(snapshot: Snapshot) -> list[tuple[str, list[str | Cell]]]:
    """Say what each recovery route won, where the engine has several and counts it."""
    counted = (snapshot.counters or {}).items()
    won = {key[len(_ROUTE) : -2]: int(value) for key, value in counted if key.startswith(_ROUTE)}
    routes = sorted(won.items(), key=lambda item: (-item[1], item[0]))
    if not routes:
        return []
    name, width = max(map(len, won)), width_of_counts(won.values(), 1)
    return [("RECOVERY", [f"{route:<{name}}  {count(tokens):>{width}} tokens" for route, tokens in routes])]


def _pool_facts(snapshot: Snapshot) -> list[tuple[str, list[str | Cell]]]:
    pool = snapshot.pool
    if pool is None:
        return [("PAGES", [UNKNOWN])]
    usable = usable_pages(pool)
    ratio = pool.usage_ratio
    held = None if pool.free is None else usable - pool.free
    line = f"{count(held)} of {count(usable)} held by requests ({percent(ratio)}), {count(pool.keys)} keys cached"
    if pool.page_bytes is not None:
        line += f", {size(usable * pool.page_bytes)} in all"
    return [("PAGES", [line])]


def _request_facts(snapshot: Snapshot) -> list[tuple[str, list[str | Cell]]]:
    if snapshot.requests is None:
        return [("REQUESTS", [UNKNOWN])]
    by_status = _by_status(snapshot)
    text = ", ".join(f"{number:,} {status}" for status, number in by_status.items())
    return [("REQUESTS", [text or "none"])]


def _by_status(snapshot: Snapshot) -> dict[str, int]:
    by_status: dict[str, int] = {}
    for request in snapshot.requests or ():
        by_status[request.status] = by_status.get(request.status, 0) + 1
    return dict(sorted(by_status.items(), key=lambda item: -item[1]))


def _agent_facts(snapshot: Snapshot) -> list[tuple[str, list[str | Cell]]]:
    version = snapshot.engine.agent_version or UNKNOWN
    mode = "may change the engine" if snapshot.engine.allow_changes else "read-only"
    off = [Cell(f"off: {text}", Tone.WARN) for text in off_reasons(snapshot.capabilities)]
    return [("AGENT", [f"{version}, {mode}", *off])]


def _reuse_data(snapshot: Snapshot, reuse: Reuse | None) -> Json | None:
    if reuse is None:
        return None
    known = reuse.explained > 0
    reason = _main_reason(reuse)
    wrong = wrong_among(snapshot.geometry, snapshot.decisions)
    usable = reuse.usable - beyond(wrong)
    worst = max(reuse.degraded, key=lambda group: reuse.degraded[group], default=None)
    phases = {phase.value: sum_up(snapshot.decisions or (), phase=phase).decisions for phase in Phase}
    return {
        "decisions": reuse.decisions,
        "explained": reuse.explained,
        "lookup_tokens": reuse.lookup if known else None,
        "logical_tokens": reuse.logical if known else None,
        "usable_tokens": usable if known else None,
        "reused_tokens": reuse.usable if known else None,
        "external_tokens": reuse.external if known else None,
        "logical_ratio": reuse.logical_ratio,
        "usable_ratio": usable / reuse.lookup if reuse.lookup else None,
        "usable_of_logical_ratio": usable / reuse.logical if reuse.logical else None,
        "lost_by_design_tokens": reuse.by_design if known else None,
        "wrong_reuses": len(wrong) if known else None,
        "outcomes": {outcome.value: number for outcome, number in sorted(reuse.outcomes.items())},
        "phases": phases,
        "limiting_group": group_name(snapshot.geometry, worst),
        "main_reason": None if reason is None else reason.value,
        "lost": [
            {"reason": why.value, "group": group_name(snapshot.geometry, group), "tokens": tokens}
            for (why, group), tokens in sorted(reuse.lost.items(), key=lambda item: -item[1])
        ],
        "absent": [{"reason": why.value, "tokens": tokens} for why, tokens in reuse.absent.most_common()],
    }


def _rest_data(snapshot: Snapshot) -> Json:
    pool = snapshot.pool
    return {
        "caching": snapshot.geometry.caching,
        "pool": None
        if pool is None
        else {
            "pages": usable_pages(pool),
            "free": pool.free,
            "keys": pool.keys,
            "usage_ratio": pool.usage_ratio,
            "page_bytes": pool.page_bytes,
        },
        "requests": None if snapshot.requests is None else _by_status(snapshot),
        "counters": None if snapshot.counters is None else dict(snapshot.counters),
        "capabilities": [{"name": item.name, "on": item.on, "reason": item.reason} for item in snapshot.capabilities],
    }
