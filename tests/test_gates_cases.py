"""The gates say about every case what the case asks for, and nothing else."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from agent.gates.catalogue import CATALOGUE
from agent.gates.editor import Editor
from agent.gates.record import REQUIRED_CHECKS, CleanRecord
from agent.gates.runner import run
from agent.model.decision import Outcome, Phase, Reason
from agent.model.evidence import BindConflict, Binds, EngineLookup, Evidence
from agent.model.finding import Finding, GateName, GateResult, Severity, Verdict
from agent.model.groups import Geometry
from agent.model.snapshot import Consistency, Snapshot
from agent.model.states import PageId, ResumeKind, State
from tests.support import cases
from tests.support.pools import PoolBuilder, chain_of, group_of

ALL_CLEAN = CleanRecord(
    engine="vllm",
    versions=("0.32.",),
    scheduler="Scheduler",
    executor="uni",
    async_scheduling="false",
    tier="none",
    checks=REQUIRED_CHECKS,
    codes=frozenset(CATALOGUE),
    evidence="made up for tests",
)


def findings(snapshot: Snapshot, code: str | None = None) -> list[Finding]:
    """Run all gates on a configuration where every code is on record."""
    found = [finding for result in run(snapshot, record=(ALL_CLEAN,)) for finding in result.findings]
    return [finding for finding in found if code in {None, finding.code}]


def one(snapshot: Snapshot, code: str) -> Finding:
    """Expect one finding of a code."""
    found = findings(snapshot, code)
    assert len(found) == 1, [finding.sentence for finding in found]
    return found[0]


def gate(results: Iterable[GateResult], name: GateName) -> GateResult:
    """Pick a gate's result."""
    return next(result for result in results if result.gate is name)


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_each_case_is_found_and_nothing_else(name: str) -> None:
    """Every case raises exactly its own codes."""
    make, codes = cases.EXPECTED[name]
    assert {finding.code for finding in findings(make())} == codes


def test_case_1_reuses_all_that_can_be_reused() -> None:
    """1,792 tokens are logical and usable, and nothing is booked to a group."""
    decision = (cases.case_1().decisions or ())[0]
    assert (decision.logical, decision.usable, decision.outcome) == (1_792, 1_792, Outcome.REUSE)
    assert all(group is None for _, group, _ in decision.lost)


def test_case_2_names_the_page_of_the_hole() -> None:
    """KV301 names the window group and the tokens 1,728-1,791; 1,792 tokens are stranded."""
    finding = one(cases.case_2(), "KV301")
    assert (finding.group, finding.tokens, finding.values["stranded"]) == (0, (1_728, 1_792), 1_792)
    assert finding.severity is Severity.WARNING
    decision = (cases.case_2().decisions or ())[0]
    assert (decision.usable, decision.limiting_group, decision.reason) == (0, 0, Reason.WINDOW_HOLE)


def test_case_3_names_the_tail() -> None:
    """KV302 names the tail's group and the tokens 1,788-1,791."""
    finding = one(cases.case_3(), "KV302")
    assert (finding.group, finding.tokens, finding.values["pages_short"]) == (3, (1_788, 1_792), 1)
    assert (cases.case_3().decisions or ())[0].limiting_state is State.TAIL


def test_case_4_is_no_fault() -> None:
    """What was never kept is no hole: usable 0, stranded 1,280, reason not_retained, no finding."""
    decision = (cases.case_4().decisions or ())[0]
    assert (decision.logical, decision.usable, decision.reason) == (1_280, 0, Reason.NOT_RETAINED)


def test_case_5_names_the_group_that_raised() -> None:
    """KV305 gives both numbers, KV307 the dense group and the one that raised."""
    over, raised = one(cases.case_5(), "KV305"), one(cases.case_5(), "KV307")
    assert (over.values["engine"], over.values["usable"]) == (3_072, 2_048)
    assert (raised.group, raised.values["value"], raised.values["raised"]) == (0, 2_048, 1)
    assert over.severity is Severity.ERROR


def test_case_6_names_the_group() -> None:
    """KV309 names the group that vetoes all, over 1,000 decisions."""
    finding = one(cases.case_6(), "KV309")
    assert (finding.group, finding.values["count"]) == (3, 1_000)


def test_case_7_explains_the_unit() -> None:
    """KV209 says that hits come in units of 4,096; the decisions say below_granularity."""
    assert one(cases.case_7(), "KV209").values["value"] == 4_096
    assert {decision.reason for decision in cases.case_7().decisions or ()} == {Reason.BELOW_GRANULARITY}


def test_case_8_in_one_run() -> None:
    """Count -1, twice in the list, 16 against 15."""
    snapshot = cases.case_8()
    assert one(snapshot, "KV103").pages == (33,)
    assert one(snapshot, "KV107").pages == (33,)
    assert (one(snapshot, "KV106").values["counter"], one(snapshot, "KV106").values["distinct"]) == (16, 15)


@pytest.mark.parametrize(
    ("make", "code"), [(cases.case_9a, "KV109"), (cases.case_9b, "KV110"), (cases.case_9c, "KV111")]
)
def test_case_9_names_page_41(make: Callable[[], Snapshot], code: str) -> None:
    """The finding names page 41, and what it is about: requests and groups by their names."""
    assert one(make(), code).pages == (41,)
    words = {"KV109": "late", "KV110": "requests left, right", "KV111": "full256#2 and window4#3; request both"}
    assert words[code] in one(make(), code).sentence


def test_case_10_counts_412_stale_pages() -> None:
    """412 pages, and the command that removes exactly these."""
    finding = one(cases.case_10(), "KV201")
    assert (len(finding.pages), finding.values["count"], finding.remedy) == (412, 412, "kvctl invalidate stale")


def test_case_11_clamps_to_the_end_of_page_6() -> None:
    """Usable up to page 6's end, which is 1,792 tokens."""
    assert one(cases.case_11(), "KV311").values["value"] == 1_792
    assert one(cases.case_11(), "KV303").tokens == (1_792, 2_560)


def test_case_14_names_the_pages_that_moved() -> None:
    """Of two planned pages only the moved one is named."""
    finding = one(cases.case_14(), "KV521")
    assert (finding.pages, finding.values["planned"], finding.values["found"]) == ((8,), 17, 19)


def test_a_plan_is_judged_against_a_snapshot() -> None:
    """Given a plan, the red lines compare its generations with the page table."""
    snapshot = cases.case_1()
    result = gate(run(snapshot, [GateName.REDLINES], plan={PageId(5): 17}), GateName.REDLINES)
    assert [finding.code for finding in result.findings] == ["KV521"]


def test_case_15_is_one_first_and_one_resumed() -> None:
    """Four look-ups and a preemption are two decisions."""
    assert [(item.phase, item.lookups) for item in cases.case_15().decisions or ()] == [
        (Phase.FIRST, 4),
        (Phase.RESUMED, 1),
    ]


def test_case_17_names_the_rows() -> None:
    """Rows 5, 6 and 7 with their pages."""
    finding = one(cases.case_17(), "KV532")
    assert finding.pages == (88, 91, 12)
    assert finding.values["rows"] == "5, 6, 7"
    assert finding.sentence.startswith("captured batch (decode 8): padding in rows 5, 6, 7 still names pages 88,")
    assert gate(run(cases.case_17()), GateName.REDLINES).abstained["KV531"] == (
        "the addresses of captured buffers were not read"
    )


def test_case_22_names_both_fingerprints() -> None:
    """What the entry carries, and what this engine is."""
    assert one(cases.case_22(), "KV206").sentence.endswith("first 1,024 tokens: other999, this engine: abcd1234")


def test_case_19_padded_passes() -> None:
    """37,440 bytes are a multiple of 576."""
    assert findings(cases.case_19(37_440)) == []


def test_case_21_names_the_two_pages() -> None:
    """The two pages that were never computed, and the command that removes exactly these."""
    finding = one(cases.case_21(), "KV118")
    assert (finding.pages, finding.remedy) == ((15, 16), "kvctl invalidate page:15,16")


def test_case_23_still_hits() -> None:
    """A duplicate of the evicted page serves the hit."""
    assert (cases.case_23().decisions or ())[0].usable == 1_792


def test_case_24_counts_doubtful_pages() -> None:
    """Pages between the last good digest and the change count as stale, and are said to be doubtful."""
    finding = one(cases.case_24(), "KV201")
    assert (finding.values["count"], finding.values["doubtful"]) == (412, 412)


def test_an_unproven_configuration_has_no_errors() -> None:
    """Without 100,000 clean checks on record an error is a warning marked experimental."""
    found = [finding for result in run(cases.case_8()) for finding in result.findings if finding.code == "KV103"]
    assert [(finding.severity, finding.experimental) for finding in found] == [(Severity.WARNING, True)]
    assert CATALOGUE["KV103"].severity is Severity.ERROR


def test_a_torn_capture_downgrades() -> None:
    """What a torn capture shows is experimental, says so, and never an error."""
    snapshot = cases.case_9b()
    snapshot = replace(snapshot, capture=replace(snapshot.capture, consistency=Consistency.TORN))
    finding = one(snapshot, "KV110")
    assert (finding.severity, finding.experimental) == (Severity.WARNING, True)
    assert "torn" in str(finding.values["torn"])


def test_content_level_abstains() -> None:
    """Without reference counts KV103-KV110 abstain with the reason, and gate 1 does not pass."""
    snapshot = cases.case_1()
    assert snapshot.pages is not None
    snapshot = replace(snapshot, pages=replace(snapshot.pages, references=None, free=None), free_list=None)
    result = gate(run(snapshot), GateName.BLOCK)
    assert result.verdict is Verdict.ABSTAIN
    assert {f"KV10{at}" for at in (3, 4, 5, 6, 7, 9)} | {"KV110"} <= result.abstained.keys()


def test_without_a_page_table_nothing_passes() -> None:
    """No table, no tensors, nothing read: every gate abstains."""
    snapshot = replace(
        cases.case_1(),
        pages=None,
        requests=None,
        decisions=None,
        pool=None,
        free_list=None,
        evidence=None,
        holders=None,
    )
    assert {result.verdict for result in run(snapshot)} == {Verdict.ABSTAIN}


def test_unknown_holders_never_make_a_count_too_high() -> None:
    """A count above the tables is no finding while pins and transfers are not known; below it always is."""
    editor = Editor(cases.case_1())
    editor.hold(900, 1)
    assert [finding.code for finding in findings(editor.build())] == ["KV110"]
    editor.holders = None
    assert findings(editor.build()) == []
    below = replace(cases.case_9b(), holders=None)
    assert [finding.code for finding in findings(below)] == ["KV110"]


def test_named_deviations_are_no_lost_hits() -> None:
    """A window of one token asks for one block: the engine's smaller answer has a name and raises nothing."""
    geometry = Geometry(groups=(group_of(0, ResumeKind.WINDOW, 16, window_past_tokens=0),), hash_unit=16, alignment=16)
    pool = PoolBuilder(geometry=geometry)
    look = EngineLookup(request="a", chain=chain_of("a", 64, 16), limit=63, answer=0, epoch=7)
    pool.evidence = Evidence(lookups=(look,))
    assert findings(pool.build()) == []


def test_the_length_of_the_hash_table_is_compared() -> None:
    """One key more or fewer than pages carry is a fault; equal numbers prove nothing, so the codes abstain."""
    snapshot = cases.case_1()
    assert snapshot.pool is not None
    assert snapshot.pool.keys is not None
    for more, code in ((1, "KV101"), (-1, "KV102")):
        pool = replace(snapshot.pool, keys=snapshot.pool.keys + more)
        assert [finding.code for finding in findings(replace(snapshot, pool=pool))] == [code]
    assert {"KV101", "KV102"} <= gate(run(snapshot), GateName.BLOCK).abstained.keys()


def test_generations_without_a_bind_say_so() -> None:
    """KV113 abstains for what is so: a probe that compares binds and saw none is not called one that compares none."""
    healthy = cases.case_1()
    seen = replace(healthy, evidence=Evidence(binds=Binds(compared=0)))
    assert gate(run(seen), GateName.BLOCK).abstained["KV113"] == "no page was bound yet"
    assert "no earlier snapshot" in gate(run(healthy), GateName.BLOCK).abstained["KV113"]
    off = replace(healthy, evidence=Evidence(missing={"binds": "switched off"}))
    assert gate(run(off), GateName.BLOCK).abstained["KV113"].startswith("switched off")


@pytest.mark.parametrize(
    ("stamps", "how"),
    [
        ((7, 9), "generation 7 when checked, 9 when bound"),
        ((0, 9), "generation unknown when checked, 9 when bound"),
        ((7, 7), "the key that it was checked for was gone when it was bound, still under generation 7"),
        ((0, 0), "the key that it was checked for was gone when it was bound, its generation is unknown"),
    ],
)
def test_what_moved_is_named(stamps: tuple[int, int], how: str) -> None:
    """KV113 names two generations where they differ, and what else is another one where they do not."""
    moved = BindConflict(
        request="r", checked=PageId(3), bound=PageId(3), stamp_checked=stamps[0], stamp_bound=stamps[1]
    )
    seen = replace(cases.case_1(), evidence=Evidence(binds=Binds(compared=4, conflicts=(moved,))))
    (found,) = [item for item in gate(run(seen), GateName.BLOCK).findings if item.code == "KV113"]
    assert found.sentence == f"1 page changed between check and use, first page 3 of request r: {how}"
