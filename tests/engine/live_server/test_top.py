"""``kvctl top`` in tmux against a real server, at 80x24 and 160x50.

The screens are kept beside this file as text, for people to look at (``KVCTL_UPDATE_GOLDEN=1`` writes them); the test
holds the structure of what it sees against them: every word and label, not the numbers and names that differ each run.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import engine_env
from tests.support.prompts import prompt, sibling
from tests.support.server import Server, serve
from tests.support.terminal import Terminal, terminal
from tests.support.waiting import wait_for

STILL_S = 0.4
SCREENS = Path(__file__).with_name("screens")
SIZES = ((80, 24), (160, 50))
BLOCK = 32
MOVING = (
    (r"kvctl top .*", "kvctl top"),
    (r"[▁▂▃▄▅▆▇█░·…]+", "#"),
    (r"cmpl-\S*", "ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "WHEN"),
    (r"\d\d:\d\d:\d\d", "CLOCK"),
    (r"last \d+ (s|min), \d+ s a sign", "last N, N s a sign"),
    (r"\d[\d,.]*( µs| ms| s)\b", "TOOK"),
    (r"\d[\d,.]*", "N"),
    (r"\s+", " "),
    (r"\s?#\s*$", ""),
)
"""What differs from run to run, with what stands for it; the last takes away what the scroll bar leaves."""


@pytest.fixture(scope="module")
def server(model: Callable[..., Path]) -> Iterator[Server]:
    """Serve a model with windows, in which a sibling of a cached prompt loses its window."""
    arguments = ("--block-size", str(BLOCK), "--num-gpu-blocks-override", "420", "--max-model-len", "4096")
    with serve(model("gemma3"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def window(server: Server) -> Iterator[Terminal]:
    """Run the dashboard, and then send what it shall show: cold, whole, and a prefix whose window was not kept."""
    environment = engine_env.clean_environment() | {"KVCTL_RUNTIME_DIR": str(server.runtime)}
    command = [*engine_env.kvctl_command(), "top", "--interval", "1"]
    with terminal(command, columns=80, rows=24, environment=environment, folder=engine_env.ROOT) as opened:
        opened.shows("[1 Overview]", "no request has been admitted yet", "live, every 1 s")
        stem = prompt("stem", 1000)
        for ids in (stem, stem, sibling(stem, 600, "other", 40)):
            server.http.complete(ids)
        yield opened


def structure(text: str) -> list[str]:
    """Return the lines of a screen without what differs from run to run, and without empty ones."""
    lines = []
    for line in text.splitlines():
        for pattern, stands_for in MOVING:
            line = re.sub(pattern, stands_for, line)  # noqa: PLW2901 - one replacement after the other
        if line.strip():
            lines.append(line.strip())
    return lines


def settled(window: Terminal, size: tuple[int, int], *words: str) -> str:
    """Return the screen once it has its size, shows all words, and has stood still: a change is drawn in pieces."""
    seen, since = "", 0.0

    def found() -> str | None:
        nonlocal seen, since
        before, seen = seen, window.screen()
        if seen != before:
            since = time.monotonic()
        lines = seen.splitlines()
        whole = len(lines) == size[1] and any(key in lines[-1] for key in ("q quit", "esc back"))
        still = time.monotonic() - since > STILL_S
        return seen if whole and still and all(word in seen for word in words) else None

    return str(wait_for(found, f"{words} on a screen of {size}"))


def check(name: str, text: str, size: tuple[int, int]) -> None:
    """Hold a screen against the one that was looked at."""
    path = SCREENS / f"{name}-{size[0]}x{size[1]}.txt"
    if os.environ.get("KVCTL_UPDATE_GOLDEN"):
        SCREENS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert structure(text) == structure(path.read_text(encoding="utf-8")), text
    assert all(len(line) <= size[0] for line in text.splitlines())


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_overview(window: Terminal, size: tuple[int, int]) -> None:
    """The overview says how much of what is cached could be used, which state costs it, and what to do."""
    window.resize(*size)
    window.press("1")
    words = ("[1 Overview]", "REQUESTS  none", "last 3 decisions", "explain not_retained", "live, every 1 s")
    text = settled(window, size, *words, *(("latest decisions",) if size[0] > 100 else ()))
    check("overview", text, size)
    for label in ("PAGES", "logical hit", "usable hit", "TIME", "DEGRADED BY", "swa", "not_retained"):
        assert label in text


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_groups(window: Terminal, size: tuple[int, int]) -> None:
    """The groups show what each holds, and the waterfall of the prefix that fell from 576 tokens to none."""
    window.resize(*size)
    window.press("2")
    words = ("[2 Groups]", "waterfall of the latest decision with a loss", "576 -> 0", "not_retained")
    text = settled(window, size, *words, *(("RESUMES",) if size[0] > 100 else ()))
    check("groups", text, size)


def test_pages(window: Terminal) -> None:
    """The pages say who holds them: references are followed while this screen is shown."""
    window.resize(80, 24)
    window.press("4")
    text = settled(window, (80, 24), "[4 Pages]", "idle, cached")
    for label in ("held, no key", "held, cached", "idle, cached", "empty"):
        assert re.search(rf"^{label} +\d", text, re.MULTILINE), text


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_decisions(window: Terminal, size: tuple[int, int]) -> None:
    """The log has one line a decision; enter opens the whole explanation of the latest, esc goes back."""
    window.resize(*size)
    window.press("5")
    check("decisions", settled(window, size, "[5 Decisions]", "3 decisions"), size)
    window.press("Enter")
    check("explained", settled(window, size, "WATERFALL", "576 -> 0"), size)
    window.press("Escape")
    window.shows("[5 Decisions]")


def test_plan_on_a_read_only_engine(window: Terminal) -> None:
    """``x`` on a decision shows the plan and says how to get an engine that allows changes."""
    window.resize(80, 24)
    window.press("5", "x")
    window.shows("plan to invalidate", "kvctl run --allow-changes")
    window.press("Escape")
    window.shows("[5 Decisions]")


def test_gates(window: Terminal) -> None:
    """``v`` runs the gates on the live engine and shows their verdicts."""
    window.press("v")
    window.shows("[6 Findings]", "1 block", "red lines")


def test_quit(window: Terminal) -> None:
    """``q`` ends it and gives the terminal back."""
    window.press("q")
    wait_for(window.gone, "the dashboard to end", deadline_s=30.0)
