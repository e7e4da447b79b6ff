"""What resuming in another way would win of one prefix beyond ``usable``: by the mathematics, or by replay.

Invariant: an estimate beside what is usable, never added to it; nothing is said of a prefix that is not known whole.
Read by the view of one prefix.
"""

from collections.abc import Sequence

from agent.model.decision import Fidelity
from agent.resume import Recovery

from ..format import count
from ..report import Json

_HOW = {
    Fidelity.EXACT: "nothing is computed again: the mathematics needs less than the engine asks for",
    Fidelity.REPLAY_EXACT: "{replay} are computed again, with the same answers",
    Fidelity.REPLAY_APPROXIMATE: "only {replay} are computed again: answers may differ",
    Fidelity.RECOMPUTE: "nothing else helps: beyond usable everything is to be computed",
}
_NOT_OFFERED = "An estimate: the engine resumes at usable, unless it offers that way."


def lines(ways: Sequence[Recovery]) -> list[str]:
    """Return one line for each way, the best first."""
    said = [f"{way.fidelity}: {_HOW[way.fidelity].format(replay=_replay(way))}{_gain(way)}" for way in ways]
    return [*said, _NOT_OFFERED] if any(way.fidelity is not Fidelity.RECOMPUTE for way in ways) else said


def _replay(way: Recovery) -> str:
    if way.replay_tokens is None:
        return "the last tokens (how many is unknown: it is not known which layers have a window)"
    return f"the last {count(way.replay_tokens)} tokens"


def _gain(way: Recovery) -> str:
    if way.fidelity is Fidelity.RECOMPUTE:
        return ""
    saved = "" if way.gained is None else f" and saves {count(way.gained)} tokens more"
    return f"; it resumes at {count(way.tokens)}{saved}"


def items(ways: Sequence[Recovery]) -> list[Json]:
    """Return the ways as JSON."""
    return [
        {
            "fidelity": way.fidelity.value,
            "tokens": way.tokens,
            "replay_tokens": way.replay_tokens,
            "gained_tokens": way.gained,
        }
        for way in ways
    ]
