"""Selectors, differences and explanations: what they find, and what they say when there is nothing."""

from dataclasses import replace

import pytest

from agent.errors import UsageError
from agent.gates.catalogue import CATALOGUE
from agent.model.decision import Reason
from inspector.diff import changes, report
from inspector.prefixes import Prefixes
from inspector.selector import Selector, SelectorKind, find, parse
from inspector.views.explanations import explanation, topics
from tests.support.cli import check_schema
from tests.support.snapshots import SIBLING, SYSTEM, gemma, key_of


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("hash:54328da7", SelectorKind.HASH, "54328da7"),
        ("request:chatcmpl-1:2", SelectorKind.REQUEST, "chatcmpl-1:2"),
        ("page:33", SelectorKind.PAGE, "33"),
        ("group:swa16/w1024#0", SelectorKind.GROUP, "swa16/w1024#0"),
        ("state:swa", SelectorKind.STATE, "swa"),
        ("tokens:-", SelectorKind.TOKENS, "-"),
        ("stale", SelectorKind.STALE, ""),
        ("all", SelectorKind.ALL, ""),
    ],
)
def test_parse(text: str, kind: SelectorKind, value: str) -> None:
    """Each form is read and written back as it was typed."""
    selector = parse(text)
    assert selector == Selector(kind, value)
    assert str(selector) == text


@pytest.mark.parametrize("text", ["4b9ee867", "4B9EE867B0BB", "123456789012", "a" * 32])
def test_a_bare_hash_is_a_selector(text: str) -> None:
    """What can only be the beginning of a key needs no ``hash:`` in front."""
    assert parse(text) == Selector(SelectorKind.HASH, text)


@pytest.mark.parametrize(("text", "choices"), [("face", "hash:face"), ("12345678", "hash:12345678 or page:12345678")])
def test_what_may_be_something_else_is_no_bare_hash(text: str, choices: str) -> None:
    """A short word, or a number that may be a page, is refused with what it may be."""
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.next_step == f"say which: {choices}"


@pytest.mark.parametrize(
    "text", ["", "hash", "hash:", "hash:xyz", "hash:" + "0" * 33, "page:x", "stale:1", "colour:red", "0" * 33]
)
def test_parse_refuses(text: str) -> None:
    """What is no selector is a usage error with a next step."""
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.next_step


@pytest.mark.parametrize("digits", [5, 6, 12, 13, 31, 32])
def test_find_by_hash(digits: int) -> None:
    """Any number of digits that is unique finds the prefix, odd ones as well."""
    key = key_of(SIBLING, 1_792).hex()[:digits]
    chain = find(Prefixes(gemma()), parse(f"hash:{key.upper()}"))
    assert max(chain) == 1_792
    assert min(chain) == 16


def test_find_by_page_and_request() -> None:
    """A page names the prefix that ends with it, a request the whole of what it holds."""
    prefixes = Prefixes(gemma())
    assert max(find(prefixes, parse("page:10"))) == 160
    chain = find(prefixes, parse("request:chatcmpl-alice"))
    assert max(chain) == 2_048
    assert prefixes.nodes.key[chain[2_048]].tobytes() == key_of(SYSTEM, 2_048)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hash:ffffffff00", "no cached prefix"),
        ("hash:5", "keys begin with 5"),
        ("page:99999", "there is no page"),
        ("page:900", "carries no key"),
        ("request:nobody", "no request nobody"),
        ("request:chatcmpl-carol", "no page with a key"),
        ("all", "does not name a single prefix"),
        ("group:x", "does not name a single prefix"),
    ],
)
def test_find_says_why_not(text: str, what: str) -> None:
    """Nothing found, too much found and the wrong kind are each said, with what to do."""
    with pytest.raises(UsageError, match=what) as caught:
        find(Prefixes(gemma()), parse(text))
    assert caught.value.next_step


def test_no_difference() -> None:
    """A snapshot does not differ from itself."""
    assert changes(gemma(), gemma(), keys_comparable=True) == []


def test_differences() -> None:
    """What changed is named with both values, and nothing else is."""
    after = gemma()
    assert after.pool is not None
    after = replace(after, pool=replace(after.pool, free=700), engine=replace(after.engine, version="0.33.0"))
    found = {one.what: (one.before, one.after) for one in changes(gemma(), after, keys_comparable=True)}
    assert found == {"engine version": ("0.32.0", "0.33.0"), "free pages": (768, 700)}


def test_keys_are_compared_only_where_they_mean_something() -> None:
    """Keys of anonymised files are not compared, and that is said."""
    before, after = gemma(), gemma()
    assert after.pages is not None
    after = replace(after, pages=replace(after.pages, key=memoryview(bytes(after.pages.key)[::-1])))
    assert any("keys" in one.what for one in changes(before, after, keys_comparable=True))
    quiet = report(before, after, keys_comparable=False)
    assert "not compared" in quiet.notes[0]


@pytest.mark.parametrize("topic", [*Reason, *CATALOGUE, "Window-Hole", "kv301", "logical", "swa", "reuse"])
def test_every_topic_is_explained(topic: str) -> None:
    """Every reason, code, state, outcome and word has an explanation, however it is written."""
    found = explanation(str(topic))
    assert found.blocks
    check_schema({"schema_version": 1, "kind": "explanation", **found.data})


def test_the_list_of_topics_is_complete() -> None:
    """The list names every reason and every code."""
    names = set(topics({"0": "done"}).names)
    assert {str(reason) for reason in Reason} | set(CATALOGUE) <= names


def test_a_near_miss_is_answered() -> None:
    """A mistyped topic names the one that was meant."""
    with pytest.raises(UsageError) as caught:
        explanation("windw_hole")
    assert "window_hole" in (caught.value.why or "")
