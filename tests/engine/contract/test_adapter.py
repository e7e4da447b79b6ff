"""The contract of adapters on this version of vLLM: the suite that the reference engine's adapter runs, too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.adapter_contract import AdapterContract, Maker
from tests.support.bare_engine import BareEngine
from tests.support.engine_env import short_folder

pytestmark = pytest.mark.engine


class TestVllm(AdapterContract):
    """vLLM's scheduler over one group of full attention, without a model."""

    @pytest.fixture
    def make(self, model: Callable[..., Path]) -> Maker:
        """Return a maker of engine cores."""

        @contextmanager
        def host() -> Iterator[BareEngine]:
            with short_folder() as runtime:
                yield BareEngine(model("llama"), runtime)

        return host
