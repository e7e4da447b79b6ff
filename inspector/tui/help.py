"""What the keys do, in one place: the help screen shows it and the tests hold it against the bindings."""

from ..report import Facts, Prose, Report
from ..symbols import LEGEND

KEYS: tuple[tuple[str, str], ...] = (
    ("1 - 6", "screens: overview, groups, prefixes, pages, decisions, findings"),
    ("up down", "move or scroll; also j k, page up, page down, home, end"),
    ("enter", "open what is under the cursor: a decision's whole explanation, a prefix group by group"),
    ("esc", "back; takes a message away"),
    ("/", "filter decisions (outcome=partial reason=window_hole, or any word) and prefixes (any word)"),
    ("space", "pause the screen; decisions are still followed"),
    ("+ -", "read more often, less often"),
    ("v", "validate: run all gates; the verdict is on screen 6"),
    ("x", "invalidate what is under the cursor: shows the plan and asks"),
    ("s", "save a snapshot to a file"),
    ("y", "show this screen as JSON"),
    ("?", "this help"),
    ("q", "quit"),
)


def help_report() -> Report:
    """Return the help."""
    words = [
        "A logical hit was found in the cache; a usable hit is what every cache group can resume from.",
        "The page table is read only for screens 2 to 4 and for v, x and s.",
        LEGEND,
    ]
    return Report(kind="help", data={}, blocks=[Facts(facts=[(key, [text]) for key, text in KEYS]), Prose(lines=words)])
