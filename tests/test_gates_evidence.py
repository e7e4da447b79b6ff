"""What single codes make of evidence: of tensors, tiers, binds, decisions and block tables that were read, or not."""

from dataclasses import replace

import pytest

from agent.gates.runner import run
from agent.gates.workers import worker_padding, worker_ranks
from agent.model.decision import Outcome, Reason
from agent.model.evidence import BindConflict, Binds, Evidence, TierReport, WorkerTensor
from agent.model.finding import Finding, Severity
from agent.model.groups import Geometry, Layer
from agent.model.snapshot import Snapshot
from agent.model.states import GroupId, PageId, ResumeKind, State
from tests.support import cases
from tests.support.pools import PoolBuilder, chain_of, deepseek_v4, group_of, plain


def told(snapshot: Snapshot, code: str) -> tuple[list[Finding], int, str | None]:
    """Run all gates; what one code found, how many objects it looked at, and why it abstains."""
    results = run(snapshot)
    return (
        [finding for result in results for finding in result.findings if finding.code == code],
        sum(result.looked.get(code, 0) for result in results),
        next((result.abstained[code] for result in results if code in result.abstained), None),
    )


def with_evidence(geometry: Geometry, evidence: Evidence) -> Snapshot:
    """An idle pool of these groups."""
    return replace(PoolBuilder(geometry=geometry, pages=64).build(), evidence=evidence)


@pytest.mark.parametrize("lacking", [State.TAIL, State.SWA, State.INDEXER, State.COMPRESSED])
def test_a_tier_needs_every_state(lacking: State) -> None:
    """A tier without a pool for one of the states, the tail as well, holds what can never be resumed from (KV205)."""
    whole = with_evidence(deepseek_v4(), Evidence(tiers=(TierReport(name="host", states=frozenset(State)),)))
    assert told(whole, "KV205") == ([], 1, None)
    short = Evidence(tiers=(TierReport(name="host", states=frozenset(set(State) - {lacking})),))
    (found,), _, _ = told(with_evidence(deepseek_v4(), short), "KV205")
    assert found.values["state"] == lacking


def test_a_tier_that_tells_little_is_there_all_the_same() -> None:
    """A tier that names no states, or holds nothing, is not said to be absent, nor to hold single pages."""
    silent = with_evidence(deepseek_v4(), Evidence(tiers=(TierReport(name="host"),)))
    assert told(silent, "KV205")[2] == "no tier says which states it has a pool for"
    assert told(silent, "KV311")[2] == "no tier holds an entry"


def test_amounts_have_thousands_and_ids_have_none() -> None:
    """A sentence shows 4,096 tokens and page 4096."""
    (found,), _, _ = told(cases.case_7(), "KV209")
    assert "units of 4,096 tokens" in found.sentence
    conflict = BindConflict(request="r", checked=PageId(4_096), bound=PageId(5), stamp_checked=1, stamp_bound=2)
    (other,), _, _ = told(with_evidence(plain(), Evidence(binds=Binds(compared=8, conflicts=(conflict,)))), "KV522")
    assert "checked 4096, bound 5" in other.sentence


def test_the_newest_conflict_is_named() -> None:
    """Of several the last request is named, with its pages first; a generation 0 is one, and None is not known."""
    items = tuple(
        BindConflict(request=name, checked=PageId(at), bound=PageId(at + 1), stamp_checked=1, stamp_bound=2)
        for name, at in (("old", 3), ("new", 7))
    )
    (found,), _, _ = told(with_evidence(plain(), Evidence(binds=Binds(compared=8, conflicts=items))), "KV522")
    assert "last request new" in found.sentence
    assert "checked 7, bound 8" in found.sentence
    again = BindConflict(request="r", checked=PageId(3), bound=PageId(3), stamp_checked=0, stamp_bound=1)
    (first,), _, _ = told(with_evidence(plain(), Evidence(binds=Binds(compared=1, conflicts=(again,)))), "KV521")
    assert "generation 0 is now 1" in first.sentence


def test_what_tiers_hold_must_be_read_before_tokens_from_there_are_an_error() -> None:
    """Without a word of the tiers nobody knows whether they hold the recurrent state, too (KV312)."""
    group = group_of(0, ResumeKind.RECURRENT, 16)
    pool = PoolBuilder(geometry=Geometry(groups=(group,), hash_unit=16, alignment=16), pages=64)
    chain = chain_of("a", 64, 16)
    pool.prompt(chain, 64)
    pool.look_up(chain, 64)
    snapshot = pool.build()
    joined = tuple(replace(item, external=16, engine_usable=16) for item in snapshot.decisions or ())
    snapshot = replace(snapshot, decisions=joined)
    for evidence in (None, Evidence(), Evidence(missing={"tiers": "its connector is not known"})):
        findings, looked, why = told(replace(snapshot, evidence=evidence), "KV312")
        assert (findings, looked) == ([], 0)
        assert why == ("its connector is not known" if evidence and evidence.missing else why)
        assert why
    (found,), _, _ = told(replace(snapshot, evidence=Evidence(tiers=())), "KV312")
    assert found.code == "KV312"


def layered(count: int = 2) -> Geometry:
    """One group of so many layers."""
    names = (Layer(name=f"layers.{number}", state=State.COMPRESSED) for number in range(count))
    return replace(plain(), groups=(replace(plain().groups[0], layers=tuple(names)),))


def tensor(layer: str, rank: int = 0) -> WorkerTensor:
    """A tensor of a layer."""
    return cases.tensor(64, layer=layer, rank=rank, group=GroupId(0))


@pytest.mark.parametrize(
    ("evidence", "missing"),
    [
        (Evidence(tensors=(tensor("layers.0"), tensor("layers.1"))), {}),
        (Evidence(tensors=(tensor("layers.0"),)), {0: 1}),
        (Evidence(tensors=()), {None: 2}),
        (Evidence(tensors=(), ranks=(0,)), {0: 2}),
        (Evidence(tensors=(tensor("layers.0"), tensor("layers.1")), ranks=(0, 1)), {1: 2}),
        (Evidence(tensors=(tensor("layers.0"), tensor("layers.1"), tensor("layers.2", 1)), ranks=(0, 1)), {}),
    ],
    ids=["all", "a layer", "every layer", "every layer of a rank", "every layer of the second rank", "a later stage"],
)
def test_tensors_that_were_read_and_are_not_there(evidence: Evidence, missing: dict[int | None, int]) -> None:
    """Where workers were read, a layer without a tensor is missing, however few there are (KV210)."""
    found, looked, why = told(with_evidence(layered(), evidence), "KV210")
    assert {finding.values["rank"]: finding.values["count"] for finding in found} == missing
    assert looked > 0
    assert why is None


def test_tensors_that_were_not_read() -> None:
    """Where nobody read the workers, or the groups name no layer, KV210 abstains with just that."""
    unread = Evidence(missing={"tensors": "the workers did not answer: too slow"})
    assert told(with_evidence(layered(), unread), "KV210") == ([], 0, "the workers did not answer: too slow")
    bare = with_evidence(plain(), Evidence(tensors=(tensor("layers.0"),)))
    assert told(bare, "KV210") == ([], 0, "the layers of the groups were not read")
    later = with_evidence(layered(), Evidence(tensors=(tensor("layers.2"),)))
    assert told(later, "KV210")[2] == "the workers hold other layers than those that the scheduler lists"


def test_ranks_that_answered() -> None:
    """Ranks are those that the answers carry; an answer without one leaves them unknown."""
    assert worker_ranks([{"rank": 1}, {"rank": 0}]) == (1, 0)
    assert worker_ranks([{"rank": 1}, {}]) is None


def test_an_indexer_that_is_behind_is_told_by_its_own_hit() -> None:
    """KV303 says what either group holds by itself, not what all groups together can resume."""
    indexer = group_of(1, ResumeKind.FULL, 64, states=(State.INDEXER,))
    window = group_of(2, ResumeKind.WINDOW, 64, window_past_tokens=64)
    pool = PoolBuilder(
        geometry=Geometry(groups=(group_of(0, ResumeKind.FULL, 64), indexer, window), hash_unit=64, alignment=64),
        pages=64,
    )
    chain = chain_of("a", 640, 64)
    for group, ends in zip(pool.geometry.groups, ((64, 641), (64, 449), (64, 193)), strict=True):
        pool.cache(chain, group, range(*ends, 64))
    pool.look_up(chain, 641)
    (found,), _, _ = told(pool.build(), "KV303")
    assert (found.values["value"], found.values["expected"]) == (448, 640)
    assert (found.severity, found.experimental) == (Severity.WARNING, False)


def test_entries_that_are_reused_without_their_keys() -> None:
    """KV303 of an engine that reused more than the indexer covers is an error, experimental until on record."""
    groups = (group_of(0, ResumeKind.FULL, 64), group_of(1, ResumeKind.FULL, 64, states=(State.INDEXER,)))
    pool = PoolBuilder(geometry=Geometry(groups=groups, hash_unit=64, alignment=64), pages=64)
    chain = chain_of("a", 640, 64)
    pool.cache(chain, groups[0], range(64, 641, 64))
    pool.cache(chain, groups[1], range(64, 449, 64))
    pool.look_up(chain, 641, 640)
    (found,), _, _ = told(pool.build(), "KV303")
    assert found.experimental


def test_a_loss_that_no_group_can_have() -> None:
    """An engine whose groups keep no window, tail, checkpoint or own indexer is not called clean of their loss."""
    pool = PoolBuilder(geometry=plain(), pages=64)
    chain = chain_of("a", 64, 16)
    pool.prompt(chain, 64)
    pool.look_up(chain, 64)
    pool.evidence = Evidence(tiers=())
    reasons = {code: told(pool.build(), code)[1:] for code in ("KV301", "KV302", "KV303", "KV304")}
    assert reasons == {
        "KV301": (0, "no group keeps a window"),
        "KV302": (0, "no group keeps a tail"),
        "KV303": (0, "no group keeps indexer keys apart from the entries they select"),
        "KV304": (0, "no group is recurrent"),
    }


def test_an_admission_is_a_plan() -> None:
    """A page that was registered anew between look-up and bind: the plan was executed under another generation."""
    conflict = BindConflict(request="r", checked=PageId(3), bound=PageId(3), stamp_checked=17, stamp_bound=19)
    clean = with_evidence(plain(), Evidence(binds=Binds(compared=8)))
    assert told(clean, "KV521") == ([], 8, None)
    moved = with_evidence(plain(), Evidence(binds=Binds(compared=8, conflicts=(conflict,))))
    (found,), _, _ = told(moved, "KV521")
    assert found.sentence == (
        "the plan (bind of r) was executed although 1 page had changed since, first page 3: generation 17 is now 19; "
        "answers that read these pages are suspect"
    )
    assert found.remedy == "kvctl invalidate page:3", "a new plan is no remedy for an answer that was given"
    unread = Evidence(missing={"binds": "groups of this engine have pools of their own"})
    assert told(with_evidence(plain(), unread), "KV521")[2] == "groups of this engine have pools of their own"


def answer(held: list[list[object]], live: int = 2) -> dict[str, object]:
    """What a worker says of a table of four rows."""
    return {"rank": 1, "padding": [{"group": 0, "live": live, "rows": 4, "held": held}]}


def test_padding_rows_of_a_worker() -> None:
    """Rows beyond the running requests that name pages are KV532; as many rows as there are were looked at."""
    clean, why = worker_padding([answer([])])
    assert why is None
    assert told(with_evidence(plain(), Evidence(graphs=clean)), "KV532") == ([], 2, None)
    dirty, _ = worker_padding([answer([[3, [7, 9]]])])
    (found,), _, _ = told(with_evidence(plain(), Evidence(graphs=dirty)), "KV532")
    assert found.pages == (7, 9)
    where = "block table of group 0 on rank 1: padding in row 3 still names pages 7, 9"
    assert found.sentence == f"{where}, which a dummy batch would write into"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"rank": 0}, "this agent does not read the runner's block tables"),
        ({"rank": 0, "padding": "another runner"}, "another runner"),
        (
            answer([[9, [1]]]),
            "a worker's padding rows could not be read: IndexError('list assignment index out of range')",
        ),
    ],
)
def test_padding_rows_that_cannot_be_read(bad: dict[str, object], why: str) -> None:
    """An answer without them, or one that makes no sense, is a reason and no evidence."""
    assert worker_padding([answer([]), bad]) == (None, why)


def test_drafts_without_a_draft_model() -> None:
    """An engine that drafts by itself rewinds as well: a group that cannot is KV211."""
    geometry = Geometry(groups=(group_of(0, ResumeKind.RECURRENT, 16),), hash_unit=16, alignment=16)
    able = Evidence(rewindable={GroupId(0): True}, drafts=True)
    assert told(with_evidence(geometry, able), "KV211") == ([], 1, None)
    unable = replace(able, rewindable={GroupId(0): False})
    (found,), _, _ = told(with_evidence(geometry, unable), "KV211")
    assert found.group == 0
    assert found.sentence.endswith("cannot be rewound, but the engine drafts tokens"), "with a model or without one"
    assert told(with_evidence(geometry, replace(unable, drafts=False)), "KV211") == ([], 1, None)


def test_reasons_of_the_hit_are_those_of_its_groups() -> None:
    """A decision that lost its window is KV301, and a tail beside it is still said to be looked at."""
    snapshot = cases.case_2()
    found, looked, why = told(snapshot, "KV302")
    assert (found, looked, why) == ([], 1, None)
    decision = (snapshot.decisions or ())[0]
    assert (decision.reason, decision.outcome) == (Reason.WINDOW_HOLE, Outcome.RECOMPUTE)
