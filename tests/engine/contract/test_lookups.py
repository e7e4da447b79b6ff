"""The resume rules equal this version's own finder."""

import os
import secrets

import pytest

from tests.support.lookup_trials import LOOKUPS_PER_STATE, Run

pytestmark = pytest.mark.engine

LOOKUPS = 8_000 if os.environ.get("KVCTL_NIGHTLY") == "1" else 800
SEED = int(os.environ.get("KVCTL_SEED") or secrets.randbits(32))


def test_usable_equals_the_engines_hit() -> None:
    """Every random look-up gives what the rules give, named deviations apart."""
    run = Run(SEED)
    for number in range(LOOKUPS // LOOKUPS_PER_STATE):
        run.state(number)
    assert run.tally.lookups >= LOOKUPS
    assert run.tally.public > 0
    assert "UNNAMED" not in run.tally.deviations
    assert run.tally.shapes["0 < usable < logical"] > 0, f"seed {SEED}"
