"""The screens as text, at three sizes, of the same snapshots that the command line's golden files show."""

from collections.abc import Awaitable, Callable

import pytest

from tests.support.cases import case_5
from tests.support.dashboard import Driver, ScriptedLink, check_screen, drive
from tests.support.snapshots import deepseek, gemma

SIZES = ((60, 16), (80, 24), (120, 40))
SCREENS = {"1": "PAGES", "2": "waterfall", "3": "PREFIX", "4": "MEANING", "5": "OUTCOME", "6": "no findings yet"}
NAMES = {"1": "overview", "2": "groups", "3": "prefixes", "4": "pages", "5": "decisions", "6": "findings"}


def looked_at(name: str, size: tuple[int, int], *keys: str, wait: str) -> Callable[[Driver], Awaitable[None]]:
    """Return a script that goes somewhere and compares what is there."""

    async def script(driver: Driver) -> None:
        await driver.shows("saved snapshot", "[1 Overview]", "PAGES")
        await driver.press(*keys)
        text = await driver.shows(wait)
        check_screen(f"{name}-{size[0]}x{size[1]}", text)
        assert all(len(line) <= size[0] for line in text.splitlines())

    return script


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("key", SCREENS)
def test_every_screen(key: str, size: tuple[int, int]) -> None:
    """Each screen of a saved Gemma-like engine looks as it did when a person looked at it."""
    keys = () if key == "1" else (key,)
    script = looked_at(f"gemma-{NAMES[key]}", size, *keys, wait=SCREENS[key])
    drive(ScriptedLink(gemma(), live=False), size, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_groups_of_five_kinds(size: tuple[int, int]) -> None:
    """Five groups and the waterfall of the decision that lost its tail stand on one screen."""
    wait = "STRANDED" if size[1] < 20 else "WATERFALL"
    drive(ScriptedLink(deepseek(), live=False), size, looked_at("deepseek-groups", size, "2", wait=wait))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_wrong_reuse_stands_above_all_advice(size: tuple[int, int]) -> None:
    """The overview of an engine that reused wrongly says so before anything else that is to be done."""

    async def script(driver: Driver) -> None:
        text = await driver.shows("DANGER", "PAGES")
        assert text.index("DANGER") < text.index("PAGES")

    drive(ScriptedLink(case_5(), live=False), size, script)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_whole_explanation(size: tuple[int, int]) -> None:
    """Enter opens what ``kvctl explain`` says about the decision under the cursor."""
    script = looked_at("gemma-explained", size, "5", "up", "enter", wait="DECISION")
    drive(ScriptedLink(gemma(), live=False), size, script)


def test_help() -> None:
    """The help fits on a small terminal without scrolling past the last key."""
    drive(ScriptedLink(gemma(), live=False), (80, 24), looked_at("help", (80, 24), "question_mark", wait="quit"))
