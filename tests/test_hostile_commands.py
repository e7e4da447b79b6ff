"""Hostile names in the commands that judge, change, compare and check, and in messages that quote a command line."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent.codec import to_plain
from agent.fingerprint import save as save_fingerprint
from agent.model.evidence import Evidence, Weights
from agent.model.fingerprint import Fingerprint, Mode, Part
from exporters import spans
from exporters.labels import MAX_LABEL
from inspector.columns import columns_of
from inspector.format import clean
from inspector.store import save
from kvctl import main as entry
from kvctl import plugin
from tests.support import cases, otlp
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.hostile import LONG, NAMES, SENDABLE, hostile, plain, poisoned
from tests.support.monitoring import exporting
from tests.support.snapshots import gemma
from tests.support.waiting import wait_for

CASES = [name for name, (_, codes) in cases.EXPECTED.items() if codes]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner on a terminal of 80 columns, in a folder of its own."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return Runner(capsys)


def plain_in_every_form(run: Runner, *words: str | Path) -> Any:
    """Run a command as table, wide table, names, JSON lines and JSON; return the JSON."""
    for form in ("table", "wide", "name", "jsonl"):
        ran = run(*words, "-o", form)
        plain(ran.out, width=80 if form == "table" else None)
        plain(ran.err)
        if form == "jsonl":
            assert [json.loads(line) for line in ran.out.splitlines()]
    ran = run(*words, "-o", "json")
    plain(ran.out)
    plain(ran.err)
    check_schema(ran.json)
    return ran.json


class Engine(FakeSession):
    """An engine whose workers, plans and refusals are as hostile as its names."""

    name = ""

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer what ``fingerprint`` and ``invalidate`` ask."""
        name = self.name
        if op == "fingerprint":
            worker = {"rank": 0, "fields": {name: name}, "loras": [], "error": None}
            failed = {"error": name}
            return {"contract": {name: name}, "weights": {name: name}, "missing": {name: name}} | {
                "workers": [worker, failed]
            }
        if op == "weights_digest":
            rank = {"rank": 0, "digest": name, "parts": {name: name}, "tensors": 2, "bytes": 9}
            return {"ranks": [rank | {"unreadable": {name: name}, "unreadable_count": 1}]}
        if op == "read":
            return {"evidence": to_plain(Evidence(weights=Weights(changes=(1 << 20,), causes=(name,))))}
        assert op == "invalidate_plan"
        assert self.full.pages is not None
        stamps = columns_of(self.full.pages).stamp
        pages = args["pages"]
        entry = {"group": 0, "key": "ab" * 16, "pages": pages, "stamps": [int(stamps[page]) for page in pages]}
        return {"engine": [self.info.pid, self.info.start_ticks], "epoch": 1, "entries": [entry], "missing": []}


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Engine]:
    """Return a function that puts a hostile engine behind every target."""

    def put(name: str) -> Engine:
        engine = Engine(hostile(name))
        engine.name = name
        monkeypatch.setattr("agent.session.open_target", lambda **_: engine)
        return engine

    return put


@pytest.mark.parametrize("case", CASES)
def test_findings(run: Runner, case: str, tmp_path: Path) -> None:
    """Whatever a finding weaves into its sentence, evidence of the engine among it, ``validate`` says plainly."""
    snapshot = cases.EXPECTED[case][0]()
    for name in (SENDABLE, LONG):
        save(poisoned(snapshot, name), tmp_path / "s.kvsnap", reveal=True)
        data = plain_in_every_form(run, "validate", "--snapshot", tmp_path / "s.kvsnap")
        assert data["engine"]["name"] == name + snapshot.engine.name


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_invalidate(run: Runner, live: Callable[[str], Engine], name: str) -> None:
    """A plan names the requests that hold its pages, and the saved plan is plain as well."""
    live(name)
    data = plain_in_every_form(run, "invalidate", "all")
    assert data["held_by"] == [name]
    assert run("invalidate", f"group:{name}#0", "--save-plan", "plan.json").code == 0
    plain(Path("plan.json").read_text(encoding="utf-8"))
    if name:
        assert run("invalidate", f"request:{name}").code == 0


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_fingerprint(run: Runner, live: Callable[[str], Engine], name: str, tmp_path: Path) -> None:
    """Fields, values and reasons that a worker makes up are shown, pinned and compared plainly."""
    live(name)
    data = plain_in_every_form(run, "fingerprint", "show")
    assert data["contract"]["fields"][name] == name
    pinned = run("fingerprint", "pin")
    assert pinned.code == 0, pinned.err
    plain(pinned.out, width=80)
    file = tmp_path / "pin.json"
    part = Part(fields={name: "other", f"{name}2": name}, missing={name: name})
    before = Fingerprint(contract=part, weights=part, mode=Mode.SAMPLE, taken_ns=0, engine=name, model=name, name=name)
    save_fingerprint(before, file)
    plain(file.read_text(encoding="utf-8"))
    for command in (("check", file), ("diff", file, file)):
        plain_in_every_form(run, "fingerprint", *command)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_doctor(run: Runner, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders with hostile names, with leftovers in them, are named plainly."""
    folder = tmp_path / (name.replace("/", "|").replace("\0", "").replace("\ud800", "") or "x")[:40]
    folder.mkdir(mode=0o700)
    (folder / "off").touch()
    monkeypatch.setenv("KVCTL_RUNTIME_DIR", str(folder))
    data = plain_in_every_form(run, "doctor")
    assert any(str(folder) in check["detail"] for check in data["checks"])


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_spans(name: str) -> None:
    """What a span says of a group with a hostile name is plain and short, and no header of a client is taken over."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    snapshot = hostile(name)
    headers = tuple((header, name) for header in ("traceparent", "tracestate", "baggage"))
    for decision in snapshot.decisions or ():
        limited = replace(decision, limiting_group=snapshot.geometry.groups[0].id, trace=headers)
        spans._record(provider.get_tracer("kvctl"), snapshot.geometry, limited)
    found = kept.get_finished_spans()
    assert len(found) == len(snapshot.decisions or ())
    for span in found:
        assert span.parent is None
        assert span.context is not None
        assert not span.context.trace_state
        for values in (span.attributes or {}, *(event.attributes or {} for event in span.events)):
            assert all(len(str(value)) <= MAX_LABEL for value in values.values())
            plain("".join(map(str, values.values())))


def test_a_receivers_refusal(tmp_path: Path) -> None:
    """What the receiver of spans and metrics answers is said plainly, though a library says it."""
    with otlp.receiver() as receiver:
        receiver.status, receiver.reason = 400, "[red]no[/] \x1b[31mno\x9b31m"
        often = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}
        with exporting(tmp_path / "none", tmp_path, "--otlp", receiver.url, environment=often) as exporter:
            said = wait_for(
                lambda: "[red]no[/]" in (text := exporter.err.read_text(encoding="utf-8")) and text,
                "the refusal on stderr",
            )
    plain(str(said))


WORDS: dict[str, tuple[str, ...]] = {
    "command": ("{}",),
    "topic": ("explain", "{}"),
    "view": ("inspect", "{}"),
    "option": ("inspect", "overview", "--{}"),
    "format": ("inspect", "-o", "{}"),
    "selector": ("inspect", "prefix", "{}"),
    "request": ("inspect", "prefix", "request:{}", "--snapshot", "s.kvsnap"),
    "hash": ("inspect", "prefix", "hash:{}"),
    "extra": ("ps", "{}"),
    "tokens": ("inspect", "prefix", "tokens:{}"),
    "group": ("invalidate", "group:{}"),
    "plan": ("invalidate", "--plan", "{}"),
    "engine": ("inspect", "--engine", "{}"),
    "socket": ("inspect", "--socket", "{}"),
    "pid": ("inspect", "--pid", "{}"),
    "snapshot": ("inspect", "--snapshot", "{}"),
    "where": ("decisions", "--where", "{}=x"),
    "value": ("decisions", "--where", "request={}", "--where", "group={}", "--snapshot", "s.kvsnap"),
    "gate": ("validate", "--gate", "{}"),
    "prefix": ("validate", "--prefix", "{}", "--snapshot", "s.kvsnap"),
    "fail-on": ("validate", "--fail-on", "{}"),
    "check": ("fingerprint", "check", "{}"),
    "diff": ("fingerprint", "diff", "{}", "{}"),
    "info": ("snapshot", "info", "{}"),
    "save": ("snapshot", "save", "{}", "--snapshot", "s.kvsnap"),
    "listen": ("export", "--listen", "{}"),
    "otlp": ("export", "--listen", "off", "--otlp", "{}"),
    "assets": ("export", "assets", "{}"),
    "run": ("run", "--", "{}"),
    "interval": ("top", "--interval", "{}"),
    "shell": ("completion", "{}"),
}
"""Command lines with a place for a hostile word."""


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_messages_quote_plainly(run: Runner, words: tuple[str, ...]) -> None:
    """A message that quotes an operator's words is plain, no bug whatever the words are, and one object with JSON."""
    save(gemma(), Path("s.kvsnap"), reveal=True)
    for name in (*NAMES.values(), SENDABLE):
        if "\0" in name:
            continue  # no command line has one
        line = [word.format(name) if word != "{}" else name for word in words]
        ran = run(*line)
        plain(ran.out)
        plain(ran.err)
        if ran.code and "--" not in line:
            told = run(*line, "-o", "json")
            plain(told.err)
            check_schema(json.loads(told.err))


def test_settings_quote_plainly(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same from the environment and from the config file."""
    for name in ("KVCTL_OUTPUT", "KVCTL_TIMEOUT", "KVCTL_PID"):
        with monkeypatch.context() as patch:
            patch.setenv(name, SENDABLE)
            ran = run("ps")
            assert ran.code == 2
            plain(ran.err)
    file = Path("config.toml")
    file.write_text(json.dumps(SENDABLE) + " = 1\n", encoding="utf-8")
    monkeypatch.setenv("KVCTL_CONFIG", str(file.absolute()))
    ran = run("ps")
    assert ran.code == 2
    plain(ran.err)


def test_a_bug_is_reported_plainly(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even what nobody expected to be said is plain."""
    monkeypatch.setattr(os, "_exit", lambda _: None)
    error = ValueError(LONG)
    entry._report_bug(ValueError, error, None)
    said = capfd.readouterr().err
    assert f"internal error: ValueError: {clean(LONG)}\n" in said
    plain(said)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_agents_log(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the agent that quotes a client is one plain line in the engine's log."""
    file = tmp_path / "log"
    monkeypatch.setenv("KVCTL_LOG", str(file))
    logger = logging.getLogger("kvctl")
    for field, value in (("handlers", []), ("propagate", True), ("level", logger.level)):
        monkeypatch.setattr(logger, field, value)
    plugin._logger()(f"look-up failed: ValueError: {name}.")
    for handler in logger.handlers:
        handler.close()
    text = file.read_text(encoding="utf-8")
    plain(text)
    assert len(text.splitlines()) == 1
    assert text.endswith(".\n")
