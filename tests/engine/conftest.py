"""Fixtures of the tests that need a real vLLM.

Invariant: the environment is prepared before any test imports vLLM; models are written once a run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engine_env import prepare_in_process
from tests.support.models import write_model

prepare_in_process()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function ``model(name, seed=None)`` that writes a tiny model once and returns its folder."""
    written: dict[tuple[str, int | None], Path] = {}

    def get(name: str, seed: int | None = None) -> Path:
        key = (name, seed)
        if key not in written:
            written[key] = write_model(tmp_path_factory.mktemp("model"), name, seed=seed)
        return written[key]

    return get
