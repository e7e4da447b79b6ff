"""What the reference engine says of its identity: keys of tokens, contract, weights."""

from collections.abc import Iterator

import pytest

from agent.engines.reference.adapter import ReferenceAdapter
from agent.reference.config import EngineConfig
from agent.reference.engine import Engine
from agent.reference.keys import Identity
from tests.support.reference import MODEL

TOKENS = [number * 7 % MODEL.vocabulary for number in range(9_000)]
"""More than one slice."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine that does nothing."""
    found = Engine(MODEL, EngineConfig())
    yield found
    found.close()


@pytest.mark.parametrize("identity", [Identity(), Identity(salt="tenant"), Identity(adapter="tuned")])
def test_keys_are_the_engines_own(engine: Engine, identity: Identity) -> None:
    """Token ids are hashed as a request with them is, salt and adapter included."""
    adapter = ReferenceAdapter(engine)
    request = engine.submit("own", TOKENS[:100], 1, identity=identity)
    work = adapter.hashing(TOKENS[:100], salt=identity.salt, lora=identity.adapter, path=None)
    assert work.advance()
    assert work.keys() == request.keys().keys
    long = adapter.hashing(TOKENS, salt=identity.salt, lora=identity.adapter, path=None)
    assert not long.advance()
    assert long.advance()
    assert long.keys()[: len(work.keys())] == work.keys()


def test_the_fingerprint_is_the_engines_own(engine: Engine) -> None:
    """The contract has every field of the engine's own, the weights their digest, and nothing is missing."""
    found = ReferenceAdapter(engine).fingerprint()
    assert found["contract"].items() >= engine.contract.items()
    assert found["weights"]["digest"] == engine.weights.digest()
    assert (found["workers"], found["missing"]) == ([], {})
