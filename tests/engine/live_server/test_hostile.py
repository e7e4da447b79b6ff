"""Hostile names through a live engine: what clients and whoever starts it call things is plain text in every output.

One server whose model folder, served name and LoRA adapter have hostile names, with a request running that has one too;
commands run on a terminal of 80 columns with colour forced, and as JSON, which keeps every name as it was.
"""

import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from exporters.labels import MAX_LABEL, clean_label
from inspector.format import clean
from tests.support import engine_env, otlp
from tests.support.adapters import write_adapter
from tests.support.hostile import CONTROL, LONG, OWN_COLOURS, SENDABLE, plain
from tests.support.models import write_model
from tests.support.monitoring import exporting, promtool
from tests.support.prompts import prompt
from tests.support.server import Result, Server, serve
from tests.support.terminal import Terminal, on_terminal, terminal
from tests.support.waiting import wait_for

BLOCK = 32
LONGEST = 40_960
"""Tokens of the request that runs on: it must not end before the last command beside it has."""
ADAPTER = f"adapter {LONG}"
FOLDER = "[red]x[|red] \x1b[31m\x1b]0;owned\x07\x9b1m\r\n\u202eevil\u2066"
SALT = re.sub(r"[@/\\]", "|", SENDABLE)[:128]
"""As far as vLLM takes a salt."""
ID = f"body {LONG}"
KEPT = 1024
"""Characters of a request's id in a decision."""
WIRE_ID = "[red]head[/]\t\x9b31m\x90q\x9c"
"""What a parser of HTTP lets through in a header: markup, tabs and C1 controls."""

VIEWS = ("overview", "groups", "states", "pages", "prefixes", "requests", "tiers", "prefix page:1")
READ = ("ps", "decisions", "explain 1", "validate", "fingerprint show", *(f"inspect {view}" for view in VIEWS))
SHOWN = {
    "decisions": "cmpl",
    "explain 1": "cmpl-[bold red]gone[/]",
    "fingerprint show": "[bold red]gone[/]",
    "inspect overview": "[bold red]gone[/]",
    "inspect requests": "cmpl-body",
}
"""What proves that a name was there to be shown."""


@dataclass(frozen=True, slots=True)
class Live:
    """The server, and what it was given."""

    server: Server
    model: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a command."""
        own = {"KVCTL_RUNTIME_DIR": str(self.server.runtime), "XDG_CONFIG_HOME": str(self.home)}
        return engine_env.clean_environment() | own

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> Result:
        """Run a command into a pipe as wide as a terminal; look at every byte of both streams."""
        done = subprocess.run(
            [*engine_env.kvctl_command(), *words],
            env=self.environment | {"COLUMNS": "80"},
            cwd=engine_env.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        found = Result(code=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode())
        assert found.code in codes, found.stderr
        plain(found.stdout, width=None if "-o" in words else 80)
        plain(found.stderr)
        return found

    def seen(self, *words: str) -> str:
        """Run a command on a terminal of 80 columns that has colours; return what it shows, its colours taken off."""
        forced = {name: value for name, value in self.environment.items() if name != "NO_COLOR"}
        text = on_terminal(
            [*engine_env.kvctl_command(), *words],
            columns=80,
            environment=forced | {"TERM": "xterm-256color", "FORCE_COLOR": "1"},
            folder=engine_env.ROOT,
            errors=False,
        )
        shown = OWN_COLOURS.sub("", text)
        plain(shown, width=80)
        return shown

    def complete(self, **fields: Any) -> None:
        """Send a short request."""
        self.server.http.complete(prompt("short", 100), **{"model": LONG} | fields)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Serve with hostile names everywhere; a request with a hostile id runs on, others have ended."""
    folder = tmp_path_factory.mktemp("model")
    model = write_model(folder, "llama", max_position_embeddings=LONGEST).rename(folder / f"model {FOLDER}")
    adapter = write_adapter(folder / f"adapter {FOLDER}", seed=1, model=model)
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules")
    with serve(
        model,
        *("--block-size", str(BLOCK), "--num-gpu-blocks-override", "2048", "--max-model-len", str(LONGEST)),
        *("--served-model-name", LONG, *lora, json.dumps({"name": ADAPTER, "path": str(adapter)})),
        environment={"KVCTL_ALLOW_CHANGES": "1", "KVCTL_LOG": str(folder / "agent.log")},
    ) as server:
        found = Live(server, model, folder)
        found.complete(request_id=SENDABLE)
        found.complete(request_id="nul\x00nul", cache_salt=SALT)
        found.complete(request_id=ID, model=ADAPTER)
        with_header(server, {"X-Request-Id": WIRE_ID}, {"max_tokens": 2}).getresponse().read()
        running = with_header(server, {}, {"max_tokens": LONGEST - 500, "request_id": ID, "model": ADAPTER})
        try:
            wait_for(lambda: requests(found), "the long request to run")
            yield found
        finally:
            running.close()


def with_header(server: Server, headers: Mapping[str, str], fields: Mapping[str, Any]) -> http.client.HTTPConnection:
    """Send a request and do not wait for its answer."""
    body = {"model": LONG, "prompt": prompt("header", 100), "temperature": 0, "ignore_eos": True, **fields}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.putrequest("POST", "/v1/completions")
    data = json.dumps(body).encode()
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
        # The library refuses no more than line breaks, which no parser would take for a value.
        connection.putheader(name, value.encode("latin-1"))
    connection.endheaders(data)
    return connection


def requests(live: Live) -> list[str]:
    """Return the ids of the requests that run."""
    return [item["id"] for item in live.run("inspect", "requests", "-o", "json").json["requests"]]


def test_json_keeps_every_name(live: Live) -> None:
    """What a program reads is exactly what the engine and its clients said."""
    (engine,) = live.run("ps", "-o", "json").json["engines"]
    assert (engine["engine"]["name"], engine["engine"]["model"]) == (LONG, str(live.model))
    (running,) = requests(live)
    assert running.startswith(f"cmpl-{ID}-0-")
    decided = [item["request"] for item in live.run("decisions", "-o", "json").json["decisions"]]
    for wanted in (SENDABLE, "nul\x00nul", WIRE_ID):
        assert sum(item.startswith(f"cmpl-{wanted}-0-") for item in decided) == 1, ascii(wanted)
    long = f"cmpl-{ID}"[:KEPT]
    assert [item for item in decided if len(item) > len(SENDABLE) + 100] == [long, long]
    lines = live.run("decisions", "-o", "jsonl").lines
    assert [item["request"] for item in lines] == decided


@pytest.mark.parametrize("command", READ)
def test_commands_that_read(live: Live, command: str) -> None:
    """On a terminal with colours, and as JSON, every command is plain."""
    words = command.split()
    assert SHOWN.get(command, "") in live.seen(*words)
    assert live.run(*words, "-o", "json").json["schema_version"]


@pytest.mark.parametrize(("command", "items"), [("inspect requests", 1), ("inspect groups", 1), ("ps", 1)])
def test_one_line_an_item(live: Live, command: str, items: int) -> None:
    """A line break in a name makes no second line."""
    for form in ("name", "jsonl"):
        assert len(live.run(*command.split(), "-o", form).stdout.splitlines()) == items
    assert len(live.run(*command.split(), "-o", "wide").stdout.splitlines()) >= items


def test_doctor(live: Live) -> None:
    """The check of a machine names the engine."""
    live.seen("doctor")
    found = live.run("doctor", "-o", "json", codes=(0, 1)).json
    assert any(str(live.model) in check["detail"] for check in found["checks"])


def test_the_engine_is_found_by_its_name(live: Live) -> None:
    """Its name, however hostile, chooses it; that there is no other one is said plainly."""
    assert len(live.run("ps", "--engine", LONG, "-o", "json").json["engines"]) == 1
    live.run("inspect", "--engine", f"{LONG}!", codes=(3,))
    told = live.run("inspect", "--engine", f"{LONG}!", "-o", "json", codes=(3,))
    assert json.loads(told.stderr)["exit_code"] == 3


def test_followed_decisions(live: Live, tmp_path: Path) -> None:
    """Each decision that is followed is a line, whatever its request is called."""
    for form in ("table", "jsonl"):
        out, err = tmp_path / f"{form}.out", tmp_path / f"{form}.err"
        words = ["decisions", "-f", "--limit", "2", "-o", form]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*engine_env.kvctl_command(), *words],
                env=live.environment | {"COLUMNS": "80"},
                cwd=engine_env.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        try:
            wait_for(lambda: followed(live), "kvctl decisions -f to follow")
            for number in range(2):
                live.complete(request_id=f"{number} {LONG}")
            assert process.wait(timeout=120) == 0
            wait_for(lambda: not followed(live), "the reader to have left")
        finally:
            process.kill()
            process.wait()
        text = out.read_bytes().decode()
        plain(text, width=80 if form == "table" else None)
        plain(err.read_bytes().decode())
        assert len(text.splitlines()) == (3 if form == "table" else 2)
        assert "cmpl-" in text


def followed(live: Live) -> bool:
    """Whether anybody follows the page table."""
    with live.server.session() as session:
        return any(session.call("capabilities")["feed"]["readers"].values())


def test_invalidate(live: Live, tmp_path: Path) -> None:
    """The dry run names who holds the pages; the plan, the result and the audit log are plain."""
    (running,) = requests(live)
    dry = live.run("invalidate", f"request:{running}", "-o", "json").json
    assert dry["held_by"] == [running]
    assert dry["selector"] == f"request:{running}"
    shown = live.seen("invalidate", f"request:{running}")
    assert "1 request, which runs on undisturbed: cmpl-body" in shown
    file = tmp_path / "plan.json"
    live.run("invalidate", f"request:{clean(running)}", "--save-plan", str(file))
    plain(file.read_text(encoding="utf-8"))
    tokens = tmp_path / f"tokens {FOLDER}"
    tokens.write_text(json.dumps(prompt("short", 100)), encoding="utf-8")
    live.run("invalidate", f"tokens:{tokens}", "--salt", SALT)
    live.run("invalidate", f"tokens:{tokens}", "--salt", LONG, "--lora", ADAPTER, codes=(2, 5))
    live.run("invalidate", f"request:{LONG}", codes=(2,))
    live.run("invalidate", f"tokens:{tokens}", "--salt", SALT, "--yes")
    audit = (live.server.runtime / "audit.jsonl").read_bytes().decode()
    plain(audit)
    assert json.loads(audit.splitlines()[-1])["result"] == "done"


def test_fingerprint(live: Live, tmp_path: Path) -> None:
    """Pinned under a hostile name, checked and compared."""
    pinned = live.run("fingerprint", "pin", "-o", "json").json
    assert (pinned["name"], pinned["model"]) == (LONG, str(live.model))
    plain(Path(pinned["file"]).read_text(encoding="utf-8"))
    body = json.loads(Path(pinned["file"]).read_text(encoding="utf-8"))
    body["contract"]["fields"] |= {"layout": SENDABLE, SENDABLE: LONG}
    other = tmp_path / f"pin {FOLDER}.json"
    other.write_text(json.dumps(body), encoding="utf-8")
    live.run("fingerprint", "check", pinned["file"], codes=(0, 6))
    for command in (("check", str(other)), ("diff", pinned["file"], str(other))):
        live.seen("fingerprint", *command)
        found = live.run("fingerprint", *command, "-o", "json", codes=(1,)).json
        assert {item["field"] for item in found["differences"]} == {"layout", SENDABLE}


def test_snapshots(live: Live, tmp_path: Path) -> None:
    """A saved engine is as plain as a live one, and with its names revealed as exact."""
    file = tmp_path / f"file {FOLDER}.kvsnap"
    live.run("snapshot", "save", str(file))
    live.run("snapshot", "save", str(file), codes=(5,))
    live.run("snapshot", "save", str(file), "--force", "--reveal")
    live.run("snapshot", "info", str(file))
    saved = live.run("inspect", "requests", "--snapshot", str(file), "-o", "json").json
    assert [item["id"] for item in saved["requests"]] == requests(live)
    for command in ("ps", "decisions", "validate", "inspect overview", "inspect requests", "inspect pages"):
        live.seen(*command.split(), "--snapshot", str(file))


def test_metrics_and_spans(live: Live, tmp_path: Path) -> None:
    """Prometheus text parses and escapes; labels and span attributes are plain and short, and no id is among them."""
    rhythm = ("--pages-every", "1", "--gates-every", "1")
    fast = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with (
        otlp.receiver() as receiver,
        exporting(live.server.runtime, tmp_path, *rhythm, "--otlp", receiver.url, environment=fast) as exporter,
    ):
        exporter.follows()
        live.complete(request_id=f"span {LONG}")
        wait_for(lambda: receiver.spans("kvctl.reuse_decision"), "a span")
        wait_for(receiver.latest, "a report of metrics")
        text = exporter.text()
        spans = receiver.spans("kvctl.reuse_decision")
    plain(text)
    promtool("check", "metrics", text=text)
    labels = [sample.labels for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    assert {label["model"] for label in labels if "model" in label} == {clean_label(str(live.model))}
    assert {label["engine"] for label in labels if label.get("engine")} == {clean_label(LONG)}
    values = [value for label in labels for value in label.values()]
    for resource, span in spans:
        values += [str(value) for value in (*resource.values(), *otlp.attributes(span.attributes).values())]
        values += [str(value) for event in span.events for value in otlp.attributes(event.attributes).values()]
    for value in values:
        plain(value)
        assert len(value) <= MAX_LABEL
        assert "cmpl-" not in value
    plain(exporter.err.read_bytes().decode())


TEXTUAL = re.compile(r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b\]22;[a-z]*\x07|\r")
"""What a screen is drawn with: control sequences of CSI, and the shape of the mouse pointer."""


@pytest.fixture
def window(live: Live, tmp_path: Path) -> Iterator[Terminal]:
    """Run the dashboard with everything that it writes on record."""
    command = [*engine_env.kvctl_command(), "top", "--interval", "1"]
    with terminal(command, columns=160, rows=50, environment=live.environment, folder=engine_env.ROOT) as opened:
        opened.record(tmp_path / "written")
        opened.shows("[1 Overview]", "live, every 1 s")
        yield opened


def test_dashboard(live: Live, window: Terminal, tmp_path: Path) -> None:
    """On every screen names are the brackets and letters that they are; the terminal's title stays its own."""
    title = window.title()
    live.complete(request_id=LONG)
    window.press("y")
    window.shows("Overview as JSON", '"name": "[bold red]gone[/]')
    window.press("Escape")
    window.shows("[1 Overview]")
    for size in ((160, 50), (80, 24)):
        window.resize(*size)
        assert "[bold red]gone[/]" in window.shows("[bold red]gone[/]")
        for key, name in enumerate(("Overview", "Groups", "Prefixes", "Pages", "Decisions", "Findings"), 1):
            window.press(str(key))
            window.shows(f"[{key} {name}]")
    window.press("5")
    window.shows("[5 Decisions]", "cmpl-")
    window.press("Enter")
    window.shows("LOOK-UP")
    window.press("y")
    window.shows("decision as JSON", '"schema_version"')
    for beneath in ("LOOK-UP", "[5 Decisions]"):
        window.press("Escape")
        window.shows(beneath)
    window.press("x")
    window.shows("plan to invalidate")
    window.press("Escape")
    window.shows("[5 Decisions]")
    window.press("v")
    window.shows("[6 Findings]", "1 block")
    assert window.title() == title
    written = (tmp_path / "written").read_bytes().decode()
    assert "[bold red]gone[/]" in TEXTUAL.sub("", written)
    assert not CONTROL.search(TEXTUAL.sub("", written))
    assert not re.search(r"\x1b\[(?:\d+;)*5(?:;\d+)*m", written), "nothing blinks"


def test_the_agents_log(live: Live) -> None:
    """What the agent writes in the engine is plain."""
    plain((live.home / "agent.log").read_bytes().decode())
