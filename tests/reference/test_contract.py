"""The contract of adapters on the reference engine: the suite that vLLM's adapter runs, too."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.adapter_contract import AdapterContract, Maker
from tests.support.bare_reference import BareReference
from tests.support.engine_env import short_folder


@contextmanager
def _host() -> Iterator[BareReference]:
    with short_folder() as runtime:
        yield BareReference(runtime)


class TestReference(AdapterContract):
    """The reference engine: seven groups, all states."""

    @pytest.fixture
    def make(self) -> Maker:
        """Return a maker of reference engines."""
        return _host
