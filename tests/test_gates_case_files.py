"""The cases as files, as somebody would send them: opened by the commands, each says what its case is."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.codec import to_plain
from agent.model.decision import Outcome, Reason
from agent.model.states import GroupId
from exporters.accounting import tally
from inspector.explain import REASONS
from inspector.retention import action, gains
from inspector.reuse import sum_up
from inspector.store import load, save
from tests.support import cases
from tests.support.case_files import FOLDER, path_of
from tests.support.cli import Runner, check_schema
from tests.support.snapshots import decision


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """The command line, without settings of the machine."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    return Runner(capsys)


def test_no_file_is_left_over() -> None:
    """There is a file for every case, and no other."""
    assert {path.name for path in FOLDER.iterdir()} == {path_of(name).name for name in cases.EXPECTED}


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_a_file_says_what_its_case_says(name: str) -> None:
    """A committed file, read back, is the snapshot that the case builds."""
    make, _ = cases.EXPECTED[name]
    assert to_plain(load(path_of(name))) == to_plain(make())


@pytest.mark.parametrize("name", cases.EXPECTED)
def test_validate_finds_the_case_in_its_file(run: Runner, name: str) -> None:
    """`kvctl validate --snapshot FILE` names exactly the codes of the case, and its exit code says whether it fails.

    Its JSON fits the published schema.
    """
    _, codes = cases.EXPECTED[name]
    ran = run("validate", "--snapshot", path_of(name), "-o", "json")
    check_schema(ran.json)
    assert {finding["code"] for finding in ran.json["findings"]} == codes
    assert ran.code == any(finding["severity"] != "info" for finding in ran.json["findings"])


@pytest.mark.parametrize("name", [name for name in cases.EXPECTED if (cases.EXPECTED[name][0]().decisions or ())])
def test_a_decision_that_took_too_much_says_so(run: Runner, name: str) -> None:
    """`kvctl explain` of a decision warns where the engine reused more than the rules allow, and only there."""
    text = run("explain", "1", "--snapshot", path_of(name)).out
    assert ("DANGER" in text) == (name == "5")
    if name == "5":
        assert "reused 3,072 tokens" in text
        assert "2,048 only" in text
        assert "kvctl explain KV305" in text


def test_wrong_reuse_is_said_first(run: Runner) -> None:
    """Overview and log of a wrong reuse name the danger, and advise nothing against what limited it."""
    text = run("inspect", "--snapshot", path_of("5")).out
    assert "1 decision reused 1,024 tokens more than every group can resume" in text
    assert "more pages" not in text
    usable, reused = (line.split() for line in text.splitlines() if line.split()[:1] in (["usable"], ["reused"]))
    assert (usable[-1], reused[-1]) == ("2,048", "3,072")
    reuse = run("inspect", "--snapshot", path_of("5"), "-o", "json").json["reuse"]
    assert (reuse["wrong_reuses"], reuse["usable_tokens"], reuse["reused_tokens"]) == (1, 2048, 3072)
    assert reuse["usable_of_logical_ratio"] == pytest.approx(2048 / reuse["logical_tokens"])
    (listed,) = run("ps", "--snapshot", path_of("5"), "-o", "json").json["engines"]
    assert (listed["wrong_reuses"], listed["usable_of_logical_ratio"]) == (1, reuse["usable_of_logical_ratio"])
    groups = run("inspect", "groups", "--snapshot", path_of("5")).out
    assert "DANGER" in groups
    assert "lost most" not in groups
    listed = run("decisions", "--snapshot", path_of("5"))
    assert "KV305" in listed.out
    assert "USABLE is what the engine reused" in listed.err
    assert "1 decision reused more than every group can resume (KV305)" in run("ps", "--snapshot", path_of("5")).err
    fine = [run(*words, "--snapshot", path_of("2")) for words in (["inspect"], ["inspect", "groups"], ["decisions"])]
    assert not any("DANGER" in ran.out or "KV305" in ran.err for ran in fine)


def test_a_loss_by_design_is_no_degradation(run: Runner, tmp_path: Path) -> None:
    """A decision that loses to boundaries only is neither degraded nor counted as a loss, beside one that is."""
    dense = decision(2, "dense", Outcome.REUSE, 2_050, 2_000, 1_792)
    dense = replace(dense, reason=None, lost=((Reason.ALIGNMENT, None, 208),))
    worse = replace(dense, lost=((Reason.ALIGNMENT, None, 100), (Reason.WINDOW_HOLE, GroupId(0), 108)))
    assert not dense.degraded
    assert worse.degraded
    snapshot = replace(load(path_of("2")), decisions=(dense,))
    save(snapshot, path := tmp_path / "dense.kvsnap")
    text = run("inspect", "--snapshot", path).out
    assert "everything that was cached could be used" in text
    assert "208 tokens by design" in text
    assert sum_up([dense, worse]).degraded.total() == 1
    adds = tally([dense, worse], snapshot.geometry)
    assert sum(number for key, number in adds.items() if key.startswith("degradations")) == 1


def test_a_prefix_off_the_boundaries_is_not_called_usable(run: Runner, tmp_path: Path) -> None:
    """`kvctl inspect prefix` of a page between two boundaries does not say that all of it can be used.

    Where a decision tells the keys before it, the last boundary is judged, and not by what a longer one lacked.
    """
    file = tmp_path / "alone.kvsnap"
    save(replace(cases.case_2(), decisions=None), file)
    ran = run("inspect", "prefix", "page:1", "--snapshot", file)
    assert "usable is unknown" in ran.out
    assert "everything that is cached can be used" not in ran.out
    placed = run("inspect", "prefix", "page:1", "--snapshot", path_of("2"))
    assert "no page of this prefix is known in it for tokens 1,408-1,536" in placed.out
    assert "says decision" not in placed.out


@pytest.mark.parametrize(("name", "reason"), [("2", "window_hole"), ("3", "tail_missing")])
def test_a_prefix_of_a_file_is_explained_by_the_decision_in_it(run: Runner, name: str, reason: str) -> None:
    """`kvctl inspect prefix` of a file names the reason from the decision that the file holds."""
    key = run("inspect", "prefixes", "--snapshot", path_of(name), "-o", "json").json["prefixes"][0]["key"]
    text = run("inspect", "prefix", key, "--snapshot", path_of(name)).out
    assert f"{reason}, says decision 1" in text
    assert f"kvctl explain 1 --snapshot {path_of(name)}" in text
    assert "decisions -f" not in text


def test_pages_that_a_list_places_are_not_missing(run: Runner) -> None:
    """The keys of a decision and the table of a request place pages that no link leads to."""
    key = run("inspect", "prefixes", "--snapshot", path_of("3"), "-o", "json").json["prefixes"][0]["key"]
    found = run("inspect", "prefix", key, "--snapshot", path_of("3"), "-o", "json").json["prefix"]
    tail = next(item for item in found["details"] if item["group"] == "window4#3")
    assert (found["pages"], tail["has_pages"], tail["unknown_tokens"]) == (28, 1, [])
    assert (tail["status"], tail["missing_tokens"]) == ("partial", [[1_788, 1_792]])
    found = run("inspect", "prefix", "page:34", "--snapshot", path_of("8"), "-o", "json").json["prefix"]
    assert (found["usable_tokens"], found["pages"]) == (512, 33)
    assert found["details"][0]["missing_tokens"] == [[512, 528]]


def test_what_nobody_can_place_is_unknown(run: Runner, tmp_path: Path) -> None:
    """Without such a list the pages before a gap are unknown, and so is what of them is usable: never 0."""
    file = tmp_path / "alone.kvsnap"
    save(replace(cases.case_8(), requests=None), file)
    found = run("inspect", "prefix", "page:34", "--snapshot", file, "-o", "json").json["prefix"]
    assert found["usable_tokens"] is None
    assert found["details"][0]["unknown_tokens"] == [[0, 512]]
    text = run("inspect", "prefix", "page:34", "--snapshot", file).out
    assert "1 of 34, 32 unknown" in text
    assert "usable is unknown" in text


def test_promised_tokens_are_not_brought(run: Runner) -> None:
    """A decision that waited for a transfer without acknowledgement counts no tokens of it, in words and in numbers."""
    ran = run("explain", "1", "--snapshot", path_of("12"))
    assert "brought" not in ran.out
    assert "still running" not in ran.out
    assert "was on its way from another tier" in ran.out
    assert run("explain", "1", "--snapshot", path_of("12"), "-o", "json").json["decision"]["external_tokens"] == 0


@pytest.mark.parametrize("name", ["11", "12", "13", "22"])
def test_a_tier_that_is_judged_is_shown(run: Runner, name: str) -> None:
    """`inspect tiers` shows the tier that `validate` judges in the same file, and that its totals were not read."""
    ran = run("inspect", "tiers", "--snapshot", path_of(name), "-o", "json")
    check_schema(ran.json)
    assert [(tier["name"], tier["details"]["listed"], tier["entries"]) for tier in ran.json["tiers"]] == [
        ("disk", "1", None)
    ]
    assert "listed for kvctl validate" in run("inspect", "tiers", "--snapshot", path_of(name)).err


def test_the_density_that_would_have_helped_is_computed(run: Runner) -> None:
    """Case 4: dense retention would have given 1,280 tokens, one window every 512 tokens 1,024; nothing is made up."""
    text = run("inspect", "groups", "--snapshot", path_of("4")).out
    assert "dense retention would have made 1,280 tokens usable, one every 512 tokens 1,024" in text
    geometry, (item,) = cases.case_4().geometry, cases.case_4().decisions or ()
    assert gains(geometry, item) == {None: 1_280, 512: 1_024}
    lost = (*item.lost, (Reason.WINDOW_HOLE, GroupId(1), 256))
    assert gains(geometry, replace(item, lost=lost)) == {}
    assert gains(replace(geometry, retention_interval=None), item) == {}


def test_a_bind_of_what_was_not_checked_is_said_first(run: Runner, tmp_path: Path) -> None:
    """The overview names pages that changed between check and use, whether or not decisions are explained."""
    snapshot = replace(cases.case_2(), counters={"toctou_conflicts": 2.0})
    unknown = tuple(replace(item, logical=None, usable=None) for item in snapshot.decisions or ())
    for name, found in (("told", snapshot), ("untold", replace(snapshot, decisions=unknown))):
        save(found, file := tmp_path / name)
        assert "2 pages had changed between check and use" in run("inspect", "--snapshot", file).out


@pytest.mark.parametrize(
    ("engine", "interval", "partial_hits", "told"),
    [
        ("vllm", 0, False, "--prefix-cache-retention-interval is 0 now: windows and checkpoints are kept only where"),
        ("vllm", 0, False, "N, a multiple of 256, keeps them every N tokens"),
        ("vllm", 1_024, False, "is 1,024 now: windows and checkpoints are kept one every 1,024 tokens. A smaller mult"),
        ("vllm", 256, False, "No other is smaller: it has to be a multiple of 256; None keeps all"),
        ("vllm", 0, True, "N, a multiple of 256, keeps"),
        ("vllm", None, False, "Retention is dense here already"),
        ("reference", 0, False, "retention_interval in its EngineConfig is 0 now"),
        ("another", 0, False, "in vLLM --prefix-cache-retention-interval N"),
    ],
)
def test_advice_on_retention_is_about_the_engine_at_hand(
    engine: str, interval: int | None, partial_hits: bool, told: str
) -> None:
    """It names the engine's own setting, the value in force, and what another value has to be a multiple of."""
    geometry = replace(cases.case_4().geometry, retention_interval=interval, partial_hits=partial_hits)
    if partial_hits:  # hits are finer than the block that the engine schedules with
        geometry = replace(geometry, alignment=64, hash_unit=64)
    assert told in action(engine, geometry, Reason.NOT_RETAINED)
    assert action(engine, geometry, Reason.EVICTED) == REASONS[Reason.EVICTED].action


@pytest.mark.parametrize(("name", "prefix"), [("21", "d990d9aec7fb"), ("10", "3518b47eb6ca"), ("24", "3518b47eb6ca")])
def test_a_prefix_with_pages_that_must_not_be_used_says_so(run: Runner, name: str, prefix: str) -> None:
    """Pages that were never computed, or with older weights, are the first thing that is said, and who names them."""
    text = run("inspect", "prefix", f"hash:{prefix}", "--snapshot", path_of(name)).out
    assert "DANGER" in text
    assert "must not be used" in text
    assert f"kvctl validate --snapshot {path_of(name)}" in text
    assert "One look at the table" not in text


def test_what_is_said_beside_a_wrong_reuse_does_not_play_it_down(run: Runner) -> None:
    """Case 5: neither that all could be used, nor that more memory would help; the prefix is to be taken out."""
    overview = run("inspect", "--snapshot", path_of("5")).out
    assert "more was reused than could be used" in overview
    assert "everything that was cached could be used" not in overview
    explained = run("explain", "1", "--snapshot", path_of("5")).out
    assert "Take this prefix out of the cache" in explained
    assert "Give the pool more pages" not in explained
