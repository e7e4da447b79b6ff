"""What the tests of the gates on one in-process engine share: a session with the module's ``engine``."""

from collections.abc import Iterator

import pytest

from agent.model.snapshot import Level
from agent.session import Session
from tests.engine.live.engines import Engine


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[Session]:
    """A session that follows the references."""
    with engine.session() as opened:
        opened.follow(Level.REFERENCES, deadline_s=60.0)
        yield opened
