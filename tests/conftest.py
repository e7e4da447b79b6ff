"""Which tests run where: ``tests/engine`` only beside vLLM, and then without exception.

Invariant: no test is skipped for lack of vLLM; without it the folder is not collected and the header says so.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.engine_env import short_folder
from tests.support.tiny_engine import TinyEngine, tiny_engine

HERE = Path(__file__).parent
HAS_ENGINE = find_spec("vllm") is not None

# Its assertions are those of tests: they say what they compared.
pytest.register_assert_rewrite("tests.support.adapter_contract")

collect_ignore = [] if HAS_ENGINE else ["engine"]


def pytest_report_header() -> str:
    """Say whether the engine's tests are part of this run."""
    if HAS_ENGINE:
        return "vLLM is installed: tests/engine can run"
    return "vLLM is not installed: tests/engine is not collected (`bash .ci/run engine` runs it)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything below ``tests/engine``, so that ``-m 'not engine'`` means the same everywhere."""
    for item in items:
        if (HERE / "engine") in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A private runtime folder."""
    with short_folder() as folder:
        yield folder


@pytest.fixture
def engine(runtime: Path) -> Iterator[TinyEngine]:
    """A running engine without a model, read-only."""
    with tiny_engine(runtime) as running:
        yield running
