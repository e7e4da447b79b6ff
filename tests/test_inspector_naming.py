"""Names that operators type: exactly this one wins, then the one that looks so, then the one that a table cut so."""

from dataclasses import replace

import pytest

from agent.errors import UsageError
from inspector.filters import parse
from inspector.naming import Fit, called, fit
from inspector.selector import find_request
from tests.support.snapshots import gemma


@pytest.mark.parametrize(
    ("name", "whole", "how"),
    [
        ("abc", "abc", Fit.EXACT),
        ("a…c", "a…c", Fit.EXACT),
        ("abc", "a\x1bbc", Fit.SHOWN),
        ("ab…yz", "ab-and-much-more-yz", Fit.CUT),
        ("a…b…yz", "a…b-and-much-more-yz", Fit.CUT),
        ("ab…y…z", "ab-and-much-more-y…z", Fit.CUT),
        ("ab…", "ab-and-much-more", Fit.CUT),
        ("…yz", "ab-and-much-more-yz", None),
        ("ab…b", "ab", None),
        ("abc", "abcd", None),
        ("cmpl-sys-b", "cmpl-sys-b-0-863d72d5", Fit.SENT),
        ("sys-b", "cmpl-sys-b-0-863d72d5", Fit.SENT),
        ("sys-b", "chatcmpl-sys-b-863d72d5", Fit.SENT),
        ("sys", "cmpl-sys-b-0-863d72d5", None),
        ("req", "req-1", None),
    ],
)
def test_how_a_name_fits(name: str, whole: str, how: Fit | None) -> None:
    """Exactly, as it is shown, or cut at any one ellipsis of the name: an id may have some of its own."""
    assert fit(name, whole) is how


def test_the_best_fit_is_meant() -> None:
    """An id that is called like the cut form of another one is found by its own name alone."""
    ids = ["chat-1-x-9", "chat…9", "ab\x1bc", "abc", "ab\x1b\x1bc"]
    assert called("chat…9", ids, str) == ["chat…9"]
    assert called("chat-…9", ids, str) == ["chat-1-x-9"]
    assert called("abc", ids, str) == ["abc"]
    assert called("abc", ids[:3], str) == ["ab\x1bc"]


def test_a_filter_means_the_best_fit() -> None:
    """``--where request=`` lists the exact request where there is one, and ``!=`` everything else."""
    snapshot = gemma()
    first, second, *_ = snapshot.decisions or ()
    items = [replace(first, request="chat-1-x-9"), replace(second, request="chat…9")]
    picked = parse(["request=chat…9"]).picked(snapshot.geometry, items)
    assert [item.request for item in picked] == ["chat…9"]
    others = parse(["request!=chat…9"]).picked(snapshot.geometry, items)
    assert [item.request for item in others] == ["chat-1-x-9"]
    assert parse(["request!=nobody"]).picked(snapshot.geometry, items) == items


def test_a_selector_means_the_exact_request() -> None:
    """``request:`` takes the request of that very id before one that is shown alike; of two such it takes none."""
    requests = gemma().requests or ()
    disguised, real = replace(requests[0], id="ab\x1bc"), replace(requests[0], id="abc")
    assert find_request((disguised, real), "abc") is real
    assert find_request((disguised,), "abc") is disguised
    with pytest.raises(UsageError, match="several requests"):
        find_request((disguised, replace(real, id="a\x1bbc")), "abc")
