"""An engine with a KV connector: its tokens are counted apart, and what kvctl cannot attribute is said."""

from collections.abc import Callable
from pathlib import Path

from tests.engine.live.engines import engine_in_process
from tests.support.claiming_connector import CLAIMED
from tests.support.prompts import prompt


def test_external_tokens_are_told_apart(model: Callable[..., Path]) -> None:
    """A decision names what the engine had itself and what a connector brought; the sum is what the engine reports."""
    from vllm.config import KVTransferConfig

    config = KVTransferConfig(
        kv_connector="ClaimingConnector",
        kv_connector_module_path="tests.support.claiming_connector",
        kv_role="kv_both",
    )
    with engine_in_process(model("llama", seed=1), pages=72, kv_transfer_config=config) as engine:
        outputs = [engine.run("first", prompt("tier", 300)), engine.run("second", prompt("tier", 200))]
        with engine.session() as session:
            overview = session.overview(decisions=2)
            counters = session.call("counters")["counters"]
            evidence = session.snapshot().evidence
    assert overview.decisions is not None
    assert [item.external for item in overview.decisions] == [CLAIMED, 0]
    assert [item.engine_usable for item in overview.decisions] == [0, 192]
    assert [item.engine_usable + item.external for item in overview.decisions] == [
        output.num_cached_tokens for output in outputs
    ]
    assert counters["reuse_external_tokens"] == CLAIMED
    assert overview.tiers is not None
    assert [tier.name for tier in overview.tiers] == ["ClaimingConnector"]
    off = {item.name: item.reason for item in overview.capabilities if not item.on}
    assert "ClaimingConnector may hold pages" in str(off["holders"])
    assert "external" not in off
    assert evidence is not None
    assert (evidence.tiers, evidence.transfers) == (None, None)
    assert evidence.missing["tiers"] == evidence.missing["transfers"]
    assert evidence.missing["tiers"].startswith("ClaimingConnector does not show what it holds")
    assert evidence.binds is not None
    assert (evidence.binds.compared, evidence.binds.conflicts) == (6, ())
