"""When it is known again that every change of weights was seen, after a call that may have changed some."""

from types import SimpleNamespace
from typing import Any

from agent.engines.vllm.weights import WeightsWatch


def watch() -> tuple[WeightsWatch, Any]:
    """A watch without an engine, at step 7."""
    feed = SimpleNamespace(note_weights_change=lambda _step: None, adapter_pages=dict)
    probe = SimpleNamespace(feed=feed, recorder=SimpleNamespace(step=7))
    return WeightsWatch(probe), probe


def test_an_unknown_call_is_cleared_by_a_complete_reading_only() -> None:
    """An equal digest of every tensor shows that an unknown call changed nothing; a partial one shows nothing."""
    found, _ = watch()
    for mode in ("sample", "full"):
        found.digested(mode, "one", complete=True)
    found._may_have_changed("anything")
    found.digested("sample", "one", complete=True)
    assert not found.evidence().watched, "an element of a thousand may have changed"  # type: ignore[union-attr]
    found.digested("full", "one", complete=False)
    assert not found.evidence().watched  # type: ignore[union-attr]
    found.digested("full", "one", complete=True)
    assert found.evidence().watched  # type: ignore[union-attr]


def test_only_a_reading_from_before_clears_an_unknown_call() -> None:
    """Two equal readings that both come after the call say nothing about what it did; a known change ends the doubt."""
    found, _ = watch()
    found._may_have_changed("anything")
    for _ in range(2):
        found.digested("full", "one", complete=True)
        assert not found.evidence().watched  # type: ignore[union-attr]
    found._may_have_changed("something")
    found.digested("full", "one", complete=True)
    assert not found.evidence().watched, "the reading lies after the first of the two calls"  # type: ignore[union-attr]
    found.changed("reload")
    assert found.evidence().watched, "every page from before is stale"  # type: ignore[union-attr]


def test_an_unknown_call_is_cleared_for_every_adapter_or_not_at_all() -> None:
    """One that is gone, or was not read before, may have been changed; where all pages are stale, it matters not."""
    found, probe = watch()
    probe.feed.note_adapter_change = lambda *_: None
    probe.adapter = SimpleNamespace(scheduler=SimpleNamespace(requests={}))
    found._pages_of = lambda name: {}  # type: ignore[method-assign]  # noqa: ARG005
    for number in (1, 2):
        found._adapters.learn((f"name {number}", number))
    found.digested("full", "one", complete=True, loras={1: "a", 2: "b"})
    found._may_have_changed("anything")
    found.digested("full", "one", complete=True, loras={1: "a"})
    assert not found.evidence().watched, "the second one is gone"  # type: ignore[union-attr]
    found.digested("full", "one", complete=True, loras={1: "changed", 2: "b"})
    weights = found.evidence()
    assert weights is not None
    assert (weights.causes, weights.adapters, weights.watched) == (("lora",), (1,), True)
    found._may_have_changed("anything")
    found._adapters.learn(("name 3", 3))
    found.digested("full", "one", complete=True, loras={1: "changed", 2: "b", 3: "c"})
    assert not found.evidence().watched, "the third one was not read before"  # type: ignore[union-attr]


def test_what_was_changed_and_changed_back_stays_unknown() -> None:
    """Between two unknown calls pages were computed, with whatever was there then: equal digests do not clear them."""
    found, probe = watch()
    found.digested("full", "one", complete=True)
    found._called(failed=False, method="perturb")
    probe.recorder.step += 40
    found._called(failed=False, method="restore")
    found.digested("full", "one", complete=True)
    assert not found.evidence().watched  # type: ignore[union-attr]


def test_a_function_of_a_harmless_name_is_no_harmless_call() -> None:
    """Workers run whatever function they are sent; its name says nothing."""
    found, _ = watch()
    found._called(failed=False, method="get_model")
    assert found.evidence().watched  # type: ignore[union-attr]

    def get_model(_worker: Any) -> None:
        """Do anything."""

    found._called(failed=False, method=get_model)
    assert not found.evidence().watched  # type: ignore[union-attr]


def test_adapters_are_counted_by_number() -> None:
    """One adapter under two numbers takes the room of two; a request that registers no page counts as well."""
    found, _ = watch()
    found._room = 1
    new = [
        SimpleNamespace(lora_request=SimpleNamespace(lora_name="a", lora_path="/a", lora_int_id=number))
        for number in (1, 2)
    ]
    found._scheduled(SimpleNamespace(scheduled_new_reqs=[*new[:1], SimpleNamespace(lora_request=None)]))
    assert found.evidence().watched  # type: ignore[union-attr]
    found._scheduled(SimpleNamespace(scheduled_new_reqs=new[1:]))
    assert not found.evidence().watched  # type: ignore[union-attr]


def test_an_adapter_that_a_request_loads_voids_a_reading() -> None:
    """A reading that began before such a request cannot clear it."""
    found, _ = watch()
    before = found.points
    adapter = SimpleNamespace(lora_name="a", lora_path="/a", lora_int_id=1, load_inplace=True)
    found._scheduled(SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(lora_request=adapter)]))
    assert not found.evidence().watched  # type: ignore[union-attr]
    assert found.points > before
