"""The table of codes is true of vLLM on CPU: what is looked at on some model or connector, and why the rest is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.fingerprint import pin_path, read, save
from agent.gates.blind import VLLM
from agent.model.snapshot import Level
from agent.session import Session
from tests.engine.live.engines import Engine, engine_in_process
from tests.support import host_tier
from tests.support.code_table import Seen
from tests.support.compat import install
from tests.support.prompts import prompt
from tests.support.validating import validate

Arguments = dict[str, Any]


def _gemma3() -> Arguments:
    """Windows and full attention, with a host tier."""
    from vllm.config import KVTransferConfig

    fields = host_tier.transfer_config()
    fields["kv_connector_extra_config"] |= {
        "spec_name": "SlowHostTier",
        "spec_module_path": "tests.support.host_tier",
    }
    return {"pages": 256, "kv_transfer_config": KVTransferConfig(**fields)}


def _qwen3next() -> Arguments:
    """Recurrent groups; their pages are large."""
    return {"pages": 64, "block_size": None, "max_model_len": 2048, "max_num_batched_tokens": 1024}


def _deepseek_v4() -> Arguments:
    """All five states."""
    install()
    return {"pages": 2048, "block_size": None}


ENGINES: dict[str, tuple[Callable[[], Arguments], int]] = {
    "gemma3": (_gemma3, 600),
    "qwen3next": (_qwen3next, 1_300),
    "deepseek_v4": (_deepseek_v4, 600),
}
"""Arguments, and tokens of a prompt that can be hit."""


@contextmanager
def served(model: Path, arguments: Arguments) -> Iterator[tuple[Engine, Session]]:
    """An engine and a session that has not read anything yet."""
    with engine_in_process(model, load_format="dummy", **arguments) as engine, engine.session() as session:
        yield engine, session


def _drive(engine: Engine, session: Session, tokens: int, seen: Seen) -> None:
    """Idle and cold, warm, busy with requests that wait and copies that run, and with a pinned contract."""
    seen.add(validate(session)[1])
    for number in range(24):
        engine.run(f"warm{number}", prompt(f"warm {number % 2}", tokens))
    session.follow(Level.REFERENCES, deadline_s=60.0)
    seen.add(validate(session)[1])
    host_tier.SlowCopyWorker.hold = True
    for number in range(12):
        engine.add(f"busy{number}", prompt(f"busy {number}", 300))
    for _ in range(3):
        engine.step()
        seen.add(validate(session)[1])
    host_tier.SlowCopyWorker.hold = False
    engine.finish()
    save(read(session), pin_path(session.info.name))
    seen.add(validate(session)[1])


def test_what_is_looked_at(model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code but those of the table is looked at on one of the engines, and no other reason is shown."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    seen = Seen()
    for name, (arguments, tokens) in ENGINES.items():
        with served(model(name), arguments()) as (engine, session):
            _drive(engine, session, tokens, seen)
    assert seen.agrees(VLLM), seen.blind() ^ VLLM.keys()
    assert seen.unlisted(VLLM) == {}
