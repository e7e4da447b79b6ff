"""The resume rules equal the engine: random caches, random look-ups, vLLM's own cache manager."""

import os
import secrets

from tests.support.lookup_trials import KINDS, LOOKUPS_PER_STATE, Run

NIGHTLY = os.environ.get("KVCTL_NIGHTLY") == "1"
LOOKUPS = 200_000 if NIGHTLY else 20_000
SEED = int(os.environ.get("KVCTL_SEED") or secrets.randbits(32))


def test_usable_equals_the_engines_hit(table: list[str]) -> None:
    """Every look-up gives what our rules give, named deviations apart, and the look-ups are hard ones."""
    run = Run(SEED)
    for number in range(-(-LOOKUPS // LOOKUPS_PER_STATE)):
        run.state(number)
    tally = run.tally
    table.append(f"seed {SEED}")
    table.extend(tally.lines())
    assert tally.lookups >= LOOKUPS
    assert tally.through_feed >= LOOKUPS / 5
    assert "UNNAMED" not in tally.deviations
    assert tally.share(tally.shapes, "0 < usable < logical") >= 0.20
    assert tally.share(tally.shapes, "usable 0 < logical") >= 0.10
    assert tally.share(tally.shapes, "below every group's own hit") >= 0.03
    for kind in KINDS:
        assert tally.share(tally.limiting, kind) >= 0.03, f"{kind} limits too seldom (seed {SEED})"
