"""Decisions of a tiny engine, explained by somebody, and posts of them."""

from dataclasses import replace
from typing import Any

from agent.client import Client
from agent.discovery import Endpoint
from agent.explainedformat import encode
from agent.model.decision import Decision, Outcome, Reason
from agent.model.states import GroupId
from tests.support.tiny_engine import TinyEngine


def decide(engine: TinyEngine, count: int) -> None:
    """Admit requests of 64 tokens, of which the engine reused 16."""
    assert engine.probe is not None
    recorder = engine.probe.recorder
    for number in range(recorder.last + 1, recorder.last + count + 1):
        recorder.looked_up(f"r{number}", 1000)
        recorder.admitted(
            f"r{number}", tokens=64, usable=16, resumed=False, skipped=False, hashes=(), trace={"traceparent": "t"}
        )


def explained(bare: Decision, **changes: Any) -> Decision:
    """As a reader that followed would have it."""
    found = replace(
        bare,
        outcome=Outcome.PARTIAL,
        logical=48,
        usable=16,
        limiting_group=GroupId(0),
        reason=Reason.NOT_RETAINED,
        lost=((Reason.NOT_RETAINED, GroupId(0), 32), (Reason.COLD, None, 16)),
        per_group=(16,),
        epoch=5,
        chain=(b"k" * 16,),
    )
    return replace(found, **changes)


def post(endpoint: Endpoint, decisions: list[Decision]) -> dict[str, Any]:
    """Post them as another reader does; return the answer."""
    with Client(endpoint) as client:
        answer: dict[str, Any] = client.call("explained", lines="\n".join(map(encode, decisions)))
        return answer


def kept(endpoint: Endpoint) -> int:
    """How many explanations the probe keeps."""
    with Client(endpoint) as client:
        return int(client.call("capabilities")["explained"]["kept"])
