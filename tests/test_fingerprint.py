"""Fingerprints as values and files, what differs between two, and `kvctl fingerprint` against a fake engine."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import fingerprint as files
from agent.collect import collect
from agent.engines.vllm.weights import WeightsWatch
from agent.errors import FileError, InconclusiveError, RefusedError, UsageError
from agent.model.evidence import Weights
from agent.model.fingerprint import Fingerprint, Mode, Part, comparable, differences, unsure
from agent.probe.weightwalk import WeightsWalk, part_of
from agent.probe.worker_operations import MAX_TOKENS, token_ids
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.snapshots import gemma

CONTRACT = {"engine": "vllm", "layout": "LBHNC", "group.0.kind.0.window": "64"}
WEIGHTS = {"model": "m", "memory.rank0": "aa", "memory.rank0.model.layers.0": "bb"}


def made(contract: dict[str, str] | None = None, weights: dict[str, str] | None = None, **more: Any) -> Fingerprint:
    """Return a fingerprint with some fields changed."""
    fields: dict[str, Any] = {"mode": Mode.SAMPLE, "name": "m", **more}
    return Fingerprint(
        contract=Part(fields=CONTRACT | (contract or {})), weights=Part(fields=WEIGHTS | (weights or {})), **fields
    )


def test_a_digest_is_a_function_of_its_fields() -> None:
    """Equal fields give equal digests in any order; a text that moves from one field to the next does not."""
    assert Part(fields={"a": "1", "b": "2"}).digest == Part(fields={"b": "2", "a": "1"}).digest
    assert Part(fields={"a": "1", "b": ""}).digest != Part(fields={"a": "", "b": "1"}).digest
    assert Part(fields={"ab": "c"}).digest != Part(fields={"a": "bc"}).digest


def test_differences_are_named_field_by_field() -> None:
    """Every field that is not the same is named with both values; a field that only one has is a difference, too."""
    found = differences(made(), made({"layout": "BLHNC", "new": "1"}, {"memory.rank0.model.layers.0": "cc"}))
    assert [(item.part, item.field, item.before, item.after) for item in found] == [
        ("contract", "layout", "LBHNC", "BLHNC"),
        ("contract", "new", None, "1"),
        ("weights", "memory.rank0.model.layers.0", "bb", "cc"),
    ]
    assert unsure(made(), made()) == ()


def test_two_ways_of_reading_are_not_compared() -> None:
    """Digests of a sample and of all bytes differ by nature: nothing is said about them but that."""
    full = made({}, {"memory.rank0": "xx", "memory.rank0.model.layers.0": "yy"}, mode=Mode.FULL)
    assert differences(made(), full) == ()
    (reason,) = unsure(made(), full)
    assert "sample and full" in reason


def test_what_was_not_read_is_no_difference_and_no_proof() -> None:
    """Fields of workers that did not answer are left out, and the result cannot be `equal`."""
    silent = Fingerprint(
        contract=Part(fields={"engine": "vllm"}, missing={"workers": "they do not answer"}),
        weights=Part(fields=WEIGHTS),
        mode=Mode.SAMPLE,
    )
    assert differences(made(), silent) == ()
    (reason,) = unsure(made(), silent)
    assert "they do not answer" in reason
    assert comparable(made(), silent) == ({"engine": "vllm"}, {"engine": "vllm"})


def test_files(tmp_path: Path) -> None:
    """A fingerprint comes back from its file as it was; other files are refused with the reason."""
    path = tmp_path / "deep" / "pin.json"
    files.save(made(taken_ns=5), path)
    assert files.load(path) == made(taken_ns=5)
    for text, reason in (("{", "not JSON"), ("{}", "no fingerprint"), ('{"kvctl_fingerprint": 9}', "newer")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(FileError) as caught:
            files.load(path)
        assert reason in f"{caught.value.what} {caught.value.why}"


def test_names_of_pins_stay_in_their_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine's name is free text: whatever it is, its pin lies in the folder of pins and can be looked for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("m", "org/model", "../../etc/passwd", "", "..", "x" * 500, "\x1b[31m", "\u6f22" * 500):
        assert files.pin_path(name).parent == tmp_path / "kvctl" / "pins"
        assert files.pinned(name) is None


# ---------------------------------------------------------------------- the walk


class Workers:
    """Two workers that answer slices, and an adapter that takes note."""

    def __init__(self, *, unreadable: bool = False) -> None:
        self.points = 0
        self.read: list[tuple[str, str, bool]] = []
        self.unreadable = unreadable
        self.values = {0: "aa", 1: "bb"}

    def weights_slice(self, *, full: bool, cursors: Any) -> list[Any]:
        """Answer the first half of a tensor, then the second and another tensor."""
        second = bool(cursors)
        parts = [["model.layers.0.w", 1, "cc"], ["model.norm", 0, "dd"]]
        lost = {"model.packed": "no elements"} if self.unreadable else {}
        return [
            {
                "rank": rank,
                "parts": parts if second else [["model.layers.0.w", 0, self.values[rank]]],
                "unreadable": lost,
                "bytes": 8,
                "tensors": 2,
                "next": None if second else [0, 1],
                "error": None,
            }
            for rank in (1, 0)
        ]

    def evidence(self) -> Any:
        """Return what is known of the weights."""
        return SimpleNamespace(weights=Weights(changes=()))

    def weights_points(self) -> int:
        """Return the changes seen so far."""
        return self.points

    def weights_read(self, mode: str, digest: str, *, complete: bool, loras: Mapping[int, str] | None = None) -> None:
        """Take note."""
        assert not loras
        self.read.append((mode, digest, complete))


def walked(workers: Workers) -> dict[str, Any]:
    """Walk to the end."""
    walk = WeightsWalk(workers, full=False)
    assert not walk.advance()
    assert walk.advance()
    return walk.result()


def test_slices_are_joined() -> None:
    """Pieces of a tensor, tensors of a layer and ranks are joined; the order of the workers does not matter."""
    workers = Workers()
    found = walked(workers)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert set(found["ranks"][0]["parts"]) == {"model.layers.0", "model.norm"}
    assert found["ranks"][0]["digest"] != found["ranks"][1]["digest"]
    assert found["ranks"][0]["bytes"] == 16
    assert found["complete"]
    assert workers.read == [("sample", found["digest"], True)]
    workers.values[1] = "ee"
    assert walked(workers)["digest"] != found["digest"]


def test_an_unreadable_tensor_makes_it_partial() -> None:
    """One tensor that cannot be read makes the whole reading partial, and it is named."""
    found = walked(Workers(unreadable=True))
    assert not found["complete"]
    assert found["ranks"][0]["unreadable"] == {"model.packed": "no elements"}


def test_a_change_in_the_middle_voids_the_reading() -> None:
    """Weights that change while they are read give no digest."""
    workers = Workers()
    walk = WeightsWalk(workers, full=False)
    walk.advance()
    workers.points += 1
    with pytest.raises(InconclusiveError, match="changed while"):
        walk.advance()


def test_layers() -> None:
    """A tensor belongs to the layer that its name's first number names."""
    assert part_of("model.layers.12.mlp.gate.weight") == "model.layers.12"
    assert part_of("model.embed_tokens.weight") == "model.embed_tokens"
    assert part_of("draft.model.layers.0.w") == "draft.model.layers.0"


# --------------------------------------------------------------------- the watch


def watch() -> tuple[WeightsWatch, Any]:
    """Return a watch of a probe at step 7, and the probe."""
    changes: list[int] = []

    def note(step: int) -> None:
        changes.append((step + 1) << 20)

    feed = SimpleNamespace(note_weights_change=note, adapter_pages=dict)
    probe = SimpleNamespace(feed=feed, recorder=SimpleNamespace(step=7))
    return WeightsWatch(probe), probe


def test_a_digest_that_differs_is_a_change() -> None:
    """Pages from before the last good digest are stale, those up to the bad one doubtful."""
    found, probe = watch()
    found.digested("sample", "one", complete=False)
    probe.recorder.step = 9
    found.digested("sample", "one", complete=False)
    probe.recorder.step = 12
    found.digested("sample", "two", complete=False)
    weights = found.evidence()
    assert weights is not None
    assert (weights.changes, weights.causes) == ((13 << 20,), ("digest",))
    assert weights.last_good == 10 << 20
    assert (weights.digest, weights.complete, weights.watched) == ("two", False, True)


def test_a_change_that_was_seen_is_not_found_again() -> None:
    """After a known change the next digest is the new measure; two ways of reading are kept apart."""
    found, _ = watch()
    found.digested("sample", "one", complete=True)
    found.digested("full", "other", complete=True)
    found.changed("reload")
    found.digested("sample", "two", complete=True)
    weights = found.evidence()
    assert weights is not None
    assert (weights.causes, weights.last_good) == (("reload",), None)


def test_token_ids() -> None:
    """Token ids come as a list or packed; anything else, and too many, is a usage error."""
    assert token_ids([1, 2]) == [1, 2]
    assert token_ids("AQAAAAIAAAA=") == [1, 2]
    for wrong in ("!", "AQA=", [1.5], [-1], [True], None, [0] * (MAX_TOKENS + 1)):
        with pytest.raises(UsageError):
            token_ids(wrong)


# ------------------------------------------------------------------ the commands


class Engine(FakeSession):
    """A fake engine with one worker on which one tensor is packed away."""

    layout = "LBHNC"
    packed = 0

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer the operations of a fingerprint."""
        if op == "fingerprint":
            return {
                "contract": {"engine": "vllm", "hash.algorithm": "sha256"},
                "weights": {"model": "m", "engine_version": "default"},
                "workers": [{"rank": 0, "fields": {"layout": self.layout}, "loras": [], "error": None}],
                "missing": {},
            }
        if op == "weights_digest":
            rank = {"rank": 0, "digest": "aa" if not args["full"] else "bb", "parts": {"model.norm": "cc"}}
            lost = {"model.w": "packed away"} if self.packed else {}
            return {"ranks": [rank | {"tensors": 2, "bytes": 9, "unreadable": lost, "unreadable_count": self.packed}]}
        raise RefusedError(f"{op} is not asked here")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Let every command find the fake engine."""
    found = Engine(gemma())
    monkeypatch.setattr("agent.session.open_target", lambda **_: found)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Give a runner without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Runner(capsys)


def test_check_takes_the_pin(run: Runner, engine: Engine) -> None:
    """Without a file an engine is compared with its pin; without a pin the command says how to make one."""
    none = run("fingerprint", "check")
    assert none.code == 2
    assert "no fingerprint is pinned" in none.err
    assert "next: kvctl fingerprint pin" in none.err
    run("fingerprint", "pin")
    assert run("fingerprint", "check").code == 0
    engine.layout = "other"
    assert run("fingerprint", "check").code == 1


def test_show_pin_check(run: Runner, engine: Engine) -> None:
    """What was pinned is found again, equal; a layout that changed is one difference, exit code 1."""
    shown = run("fingerprint", "show", "-o", "json")
    assert shown.code == 0
    check_schema(shown.json)
    assert not shown.json["partial"]
    pinned = run("fingerprint", "pin", "-o", "json")
    assert pinned.code == 0
    check_schema(pinned.json)
    file = pinned.json["file"]
    assert Path(file) == files.pin_path(engine.info.name)
    same = run("fingerprint", "check", file, "-o", "json")
    assert (same.code, same.json["result"]) == (0, "equal")
    check_schema(same.json)
    again = run("fingerprint", "pin")
    assert (again.code, "--force" in again.err) == (5, True)
    engine.layout = "BLHNC"
    wrong = run("fingerprint", "check", file, "-o", "json")
    assert wrong.code == 1
    check_schema(wrong.json)
    assert [item["field"] for item in wrong.json["differences"]] == ["layout"]
    assert "BLHNC" in run("fingerprint", "check", file).out


def test_a_partial_fingerprint_never_passes(run: Runner, engine: Engine, tmp_path: Path) -> None:
    """With an unreadable tensor `show` says which and why, and `check` answers 6 at best."""
    engine.packed = 1
    file = tmp_path / "pin.json"
    assert run("fingerprint", "pin", "--file", file).code == 0
    text = run("fingerprint", "show").out
    assert "1 of 2 tensors could not be read: model.w (packed away)" in " ".join(text.split())
    assert run("fingerprint", "check", file).code == 6
    assert run("fingerprint", "diff", file, file).code == 6


def test_check_reads_as_the_pin_was_read(run: Runner, engine: Engine, tmp_path: Path) -> None:
    """A pin of every byte is compared with every byte."""
    file = tmp_path / "pin.json"
    run("fingerprint", "pin", "--full", "--file", file)
    assert json.loads(file.read_text(encoding="utf-8"))["mode"] == "full"
    assert run("fingerprint", "check", file).code == 0


def test_the_pin_is_evidence(run: Runner, engine: Engine) -> None:
    """Gates get both contracts where an engine of this name was pinned, and none where it was not."""
    before = collect(engine, engine.full)  # type: ignore[arg-type]
    assert before.evidence is not None
    assert before.evidence.contract is None
    run("fingerprint", "pin")
    engine.layout = "BLHNC"
    after = collect(engine, engine.full)  # type: ignore[arg-type]
    assert after.evidence is not None
    contract = after.evidence.contract
    assert contract is not None
    assert contract.pinned is not None
    assert (contract.fields["layout"], contract.pinned["layout"]) == ("BLHNC", "LBHNC")
