"""What the keys do: each promise of the help, on a scripted source."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.widgets import Input

from agent.errors import UnsupportedError
from agent.model.decision import Outcome
from agent.model.snapshot import Snapshot
from inspector.columns import columns_of
from inspector.store import load
from inspector.tui.app import Dashboard
from inspector.tui.help import KEYS
from inspector.tui.jobs import save_to
from inspector.tui.messages import Remark
from tests.support.cli import FakeSession
from tests.support.dashboard import Driver, ScriptedLink, drive, held
from tests.support.snapshots import decision, gemma

SIZE = (100, 30)


@dataclass
class PlanningSession(FakeSession):
    """An engine that plans and carries out."""

    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def overview(self, **_: Any) -> Snapshot:
        """Return everything but the page table."""
        return replace(self.full, pages=None)

    def snapshot(self, **_: Any) -> Snapshot:
        """Return the whole snapshot."""
        return self.full

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer as the agent does."""
        self.asked.append((op, args))
        engine = [self.full.engine.pid, self.full.engine.start_ticks]
        if op == "invalidate_plan":
            assert self.full.pages is not None
            columns = columns_of(self.full.pages)
            entries = [
                {
                    "group": int(columns.group[page]),
                    "key": columns.key[page].tobytes().hex(),
                    "pages": [page],
                    "stamps": [int(columns.stamp[page])],
                }
                for page in args["pages"]
            ]
            return {"engine": engine, "epoch": 7, "entries": entries}
        if op == "fingerprint":
            raise UnsupportedError("this engine tells no contract")
        return {"removed": len(args["plan"]["entries"]), "by_group": {}}


def changing(*, allowed: bool) -> PlanningSession:
    """Return an engine that allows changes, or does not."""
    snapshot = gemma()
    return PlanningSession(replace(snapshot, engine=replace(snapshot.engine, allow_changes=allowed)))


def test_help_names_every_key() -> None:
    """Every key that is bound stands in the help."""
    names = {"slash": "/", "question_mark": "?", "plus,equals_sign": "+", "minus": "-", "escape": "esc"}
    listed = " ".join(key for key, _ in KEYS)
    for binding in Dashboard.BINDINGS:
        key = str(getattr(binding, "key", ""))
        assert key in "23456" or names.get(key, key) in listed, key


def test_filter() -> None:
    """A filter leaves what fits, says how much that is, and an empty one takes it away."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("5", "slash", *"outcome=partial", "enter")
        text = await driver.shows("1 decision of 6 that fit the filter")
        assert "chatcmpl-erin" in text
        assert "chatcmpl-bob" not in text
        await driver.press("slash", *["backspace"] * 20, *"BOB", "enter")
        assert "chatcmpl-erin" not in await driver.shows("chatcmpl-bob")
        await driver.press("slash", *["backspace"] * 20, "enter")
        await driver.shows("chatcmpl-erin", "chatcmpl-bob", "6 decisions")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)


def test_filter_that_cannot_be_read() -> None:
    """A filter that can never fit says what would, and esc takes that away."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("5", "slash", *"outcome=nonsense", "enter")
        await driver.shows("! --where outcome=nonsense fits nothing", "next: use one of")
        await driver.press("escape")
        await driver.until(lambda text: "nonsense" not in text, "the message to go")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)


def test_json() -> None:
    """``y`` shows what ``-o json`` writes, of the open screen."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("2")
        await driver.shows("waterfall")
        await driver.press("y")
        await driver.shows('"kind": "groups"')
        await driver.press("escape")
        await driver.shows("[2 Groups]")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)


def test_json_is_json() -> None:
    """What stands there is one JSON object with the version of its schema."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        assert driver.app.picture is not None
        report = driver.app.picture.report
        assert report is not None
        assert json.loads(driver.app.to_json(report))["schema_version"] == 1

    drive(ScriptedLink(gemma(), live=False), SIZE, script)


def test_pace_and_pause() -> None:
    """``-`` reads less often, ``+`` more often, space holds the screen and says so."""

    async def script(driver: Driver) -> None:
        await driver.shows("every 0.5 s")
        await driver.press("minus")
        await driver.shows("every 1 s")
        await driver.press("plus")
        await driver.shows("every 0.5 s")
        await driver.press("space")
        await driver.shows("PAUSED")
        await driver.press("space")
        await driver.until(lambda text: "PAUSED" not in text, "the screen to go on")

    drive(ScriptedLink(fresh_one()), SIZE, script)


def fresh_one() -> Snapshot:
    """Return a snapshot that was taken just now."""
    import time

    snapshot = gemma()
    return replace(snapshot, capture=replace(snapshot.capture, taken_ns=time.time_ns()))


def test_validate() -> None:
    """``v`` runs the gates beside the screen and opens the verdict."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("v")
        await driver.shows("[6 Findings]", "1 block", "red lines", "KV301")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)


def test_save(tmp_path: Path) -> None:
    """``s`` asks for a file and writes a snapshot that loads again, with nothing of the engine's ids in it."""
    file = tmp_path / "saved.kvsnap"

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("s")
        await driver.shows("save to:")
        driver.app.main(Input).value = str(file)
        await driver.press("enter")
        await driver.until(lambda _: file.exists(), "the file")
        await driver.shows("saved")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)
    saved = load(file)
    assert saved.pages is not None
    assert all("alice" not in item.request for item in saved.decisions or ())


def test_a_saved_file_keeps_what_was_explained(tmp_path: Path) -> None:
    """Decisions that the dashboard has followed are explained in the file, though whoever saves it joins only then."""
    shown = gemma()
    late = tuple(replace(item, logical=None, lost=()) for item in shown.decisions or ())[1:]
    newer = decision(9, "newer", Outcome.UNKNOWN, 100, None, 50)
    session = changing(allowed=False)
    session.full = replace(shown, decisions=(*late, newer))
    message = save_to(file := tmp_path / "f.kvsnap", "0", shown)(ScriptedLink(shown, session=session), 1.0)
    assert isinstance(message, Remark)
    saved = load(file).decisions or ()
    assert [item.id for item in saved] == [*(item.id for item in shown.decisions or ()), 9]
    assert [item.logical for item in saved[:-1]] == [item.logical for item in shown.decisions or ()]
    other = replace(shown, engine=replace(shown.engine, start_ticks=shown.engine.start_ticks + 1))
    save_to(file, "0", other)(ScriptedLink(shown, session=session), 1.0)
    assert len(load(file).decisions or ()) == len(late) + 1


def test_plan_on_a_read_only_engine() -> None:
    """``x`` shows the plan and how to get an engine that allows changes; Y changes nothing."""
    session = changing(allowed=False)

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("3")
        await driver.shows("> ff1375499da7")
        await driver.press("x")
        await driver.shows("plan to invalidate", "selector  hash:ff1375499da7", "kvctl run --allow-changes")
        await driver.press("Y", "escape")
        await driver.shows("[3 Prefixes]")

    drive(ScriptedLink(session.full, session=session), SIZE, script)
    assert [op for op, _ in session.asked] == ["invalidate_plan"]
    assert session.closed


def test_plan_is_carried_out_as_shown() -> None:
    """Y carries out exactly the plan that was shown, once; esc would have left everything."""
    session = changing(allowed=True)

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("3")
        await driver.shows("> ff1375499da7")
        await driver.press("x")
        await driver.shows("Y (capital) carries it out")
        await driver.press("escape")
        await driver.shows("[3 Prefixes]")
        await driver.press("x")
        await driver.shows("Y (capital) carries it out")
        await driver.press("Y")
        await driver.shows("taken out of the cache")

    drive(ScriptedLink(session.full, session=session), SIZE, script)
    assert [op for op, _ in session.asked] == ["invalidate_plan", "invalidate_plan", "invalidate_apply"]
    planned, applied = session.asked[1][1], session.asked[2][1]
    assert [entry["pages"][0] for entry in applied["plan"]["entries"]] == planned["pages"]


def test_nothing_to_invalidate() -> None:
    """``x`` where nothing is chosen says where to choose."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("x")
        await driver.shows("! nothing is chosen", "screen 3")

    drive(ScriptedLink(gemma()), SIZE, script)


def test_keys_never_wait() -> None:
    """While a reading hangs, screens open and the help is there."""
    link = ScriptedLink(gemma())

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        with held(link):
            await driver.press("2")
            await driver.shows("[2 Groups]")
            await driver.press("question_mark")
            await driver.shows("kvctl top: keys")
            await driver.press("escape")
        await driver.shows("swa16/w1024#0")

    drive(link, SIZE, script)


def test_chosen_decision_has_its_waterfall() -> None:
    """The decision that was opened last is the one whose waterfall the groups show."""

    async def script(driver: Driver) -> None:
        await driver.shows("PAGES")
        await driver.press("5", "up", "up", "enter")
        await driver.shows("DECISION", "chatcmpl-dave")
        await driver.press("escape", "2")
        await driver.shows("the decision chosen on screen 5", "1,792 -> 0")

    drive(ScriptedLink(gemma(), live=False), SIZE, script)
