"""The resume rules against every boundary tried one by one."""

from hypothesis import HealthCheck, given, settings

from agent.explain import explain
from agent.model.decision import Reason
from agent.model.states import ResumeKind
from agent.resume import evaluate, expected_engine_hit
from tests.support.bruteforce import BruteForce
from tests.support.lookup_strategies import Keys, Lookup, lookups
from tests.support.lookups import Memory, record


@settings(max_examples=4000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_rules_equal_every_boundary_tried(look: Lookup) -> None:
    """Usable, logical and every group's own hit equal the rules written out over all boundaries."""
    geometry, chain, held, limit = look
    brute = BruteForce(geometry, chain, held, limit)
    hit = evaluate(geometry, chain, Keys(held), limit=limit)
    assert hit.usable == brute.usable()
    assert hit.logical == brute.logical()
    assert hit.per_group == tuple(brute.own(group) for group in geometry.groups)
    assert expected_engine_hit(geometry, chain, Keys(held), limit=limit, deviations=frozenset()) == hit.usable


@settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_waterfall_adds_up(look: Lookup) -> None:
    """The steps below logical form one unbroken line down to usable, and the limiting group has the largest sum."""
    geometry, chain, held, limit = look
    hit = evaluate(geometry, chain, Keys(held), limit=limit)
    assert hit.usable is not None
    top = limit - limit % geometry.alignment
    inner = [step for step in hit.waterfall if step.to_tokens < top]
    position = min(hit.logical, top)
    for step in inner:
        assert step.from_tokens == position
        assert step.lost > 0
        position = step.to_tokens
    assert position == hit.usable
    sums: dict[int, int] = {}
    for step in inner:
        if step.group is not None:
            sums[step.group] = sums.get(step.group, 0) + step.lost
    expected = min((g for g, lost in sums.items() if lost == max(sums.values())), default=None)
    assert hit.limiting_group == expected


@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_every_token_is_reused_or_lost_once(look: Lookup) -> None:
    """The losses of an explained decision and its usable tokens add up to what was looked up."""
    geometry, chain, held, limit = look
    usable = evaluate(geometry, chain, Keys(held), limit=limit).usable or 0
    decision = explain(geometry, Keys(held), Memory(held, complete=False), record(chain, limit + 1, usable))
    assert sum(tokens for _, _, tokens in decision.lost) == limit + 1 - usable
    assert decision.usable == usable
    assert all(
        before.to_tokens == after.from_tokens
        for before, after in zip(decision.waterfall, decision.waterfall[1:], strict=False)
    )


@settings(max_examples=1200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lookups())
def test_only_what_has_a_retention_rule_is_not_retained(look: Lookup) -> None:
    """However complete the memory, a group that keeps every full page never says that it did not keep one."""
    geometry, chain, held, limit = look
    hit = evaluate(geometry, chain, Keys(held), limit=limit, ghost=Memory(held, complete=True))
    for step in hit.waterfall:
        if step.group is not None and step.reason is Reason.NOT_RETAINED:
            assert geometry.groups[step.group].kind in {ResumeKind.WINDOW, ResumeKind.RECURRENT}
        if step.group is not None and step.reason is Reason.ALIGNMENT:
            assert geometry.groups[step.group].kind is ResumeKind.FULL
            assert geometry.partial_hits
