"""What a selector covers, plans as files, and `kvctl invalidate` against an engine that answers like the probe."""

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import FileError, InconclusiveError, RefusedError, UsageError
from agent.model.evidence import Evidence, Weights
from agent.model.snapshot import Snapshot
from inspector.columns import columns_of
from inspector.invalidation import PART_PAGES, Plan, apply_plan, holders_of, load_plan, make_plan, save_plan
from inspector.selection import select
from inspector.selector import parse
from tests.support.cli import FakeSession, Runner, check_schema
from tests.support.snapshots import SIBLING, SYSTEM, chain_of, gemma, key_of


class Engine(FakeSession):
    """A snapshot that plans and evicts like the probe: by key, and only if no stamp moved."""

    moved: frozenset[int] = frozenset()
    evicted: tuple[int, ...] = ()

    def call(self, op: str, /, *, deadline_s: float = 1.0, **args: Any) -> dict[str, Any]:
        """Answer the two operations of a change."""
        assert self.full.pages is not None
        columns = columns_of(self.full.pages)
        stamps = [int(stamp) + (page in self.moved) for page, stamp in enumerate(columns.stamp)]
        entries: dict[tuple[int, str], list[int]] = {}
        for page in range(columns.count):
            if columns.tokens[page] and page not in self.evicted:
                entries.setdefault((int(columns.group[page]), columns.key[page].tobytes().hex()), []).append(page)
        engine = [self.info.pid, self.info.start_ticks]
        if op == "invalidate_plan":
            pages, keys = set(args.get("pages") or ()), {(group, key) for group, key in args.get("keys") or ()}
            found = [
                {"group": group, "key": key, "pages": held, "stamps": [stamps[page] for page in held]}
                for (group, key), held in entries.items()
                if pages & set(held) or (group, key) in keys
            ]
            return {"engine": engine, "epoch": 1, "entries": found, "missing": []}
        assert op == "invalidate_apply"
        plan = args["plan"]
        assert plan["engine"] == engine
        for entry in plan["entries"]:
            held = entries.get((entry["group"], entry["key"]), [])
            if held != entry["pages"] or [stamps[page] for page in held] != entry["stamps"]:
                raise RefusedError("the plan is outdated: pages moved since it was made", why="pages ...")
        taken = [page for entry in plan["entries"] for page in entry["pages"]]
        self.evicted = (*self.evicted, *taken)
        return {"removed": len(taken), "by_group": {"0": len(taken)}, "epoch": 2}


def tokens_of(snapshot: Snapshot, pages: tuple[int, ...], group: int) -> set[int]:
    """Return the positions that some pages of a group hold."""
    assert snapshot.pages is not None
    columns = columns_of(snapshot.pages)
    return {int(columns.tokens[page]) for page in pages if columns.group[page] == group}


def test_a_hash_takes_what_was_computed_on_top_and_nothing_before() -> None:
    """`hash:` takes the prefix in every group and everything longer on its chain; its own beginning stays."""
    snapshot = gemma()
    key = key_of(SYSTEM, 1_280)
    picked = select(snapshot, parse(f"hash:{key.hex()}"))
    block = snapshot.geometry.groups[2].block_size
    assert min(tokens_of(snapshot, picked.pages, 2)) == 1_280
    assert max(tokens_of(snapshot, picked.pages, 2)) == 2_048
    assert snapshot.pages is not None
    columns = columns_of(snapshot.pages)
    keys = {columns.key[page].tobytes() for page in picked.pages}
    assert key_of(SYSTEM, 2_048) in keys
    assert key_of(SIBLING, 1_792) in keys, "the sibling shares 1,280 tokens: it was computed on top of them"
    assert key_of(SYSTEM, 1_280 - block) not in keys


def test_a_request_takes_its_whole_chain() -> None:
    """`request:` takes every key of the chain from its first block on."""
    snapshot = gemma()
    picked = select(snapshot, parse("request:chatcmpl-alice"))
    assert min(tokens_of(snapshot, picked.pages, 2)) == snapshot.geometry.groups[2].block_size


def test_tokens_take_what_of_their_chain_is_cached() -> None:
    """`tokens:` takes the cached part of the chain that the engine hashed for them."""
    snapshot = gemma()
    chain = chain_of(SIBLING, snapshot.geometry.hash_unit)
    picked = select(snapshot, parse("tokens:-"), chain=chain)
    assert 1_792 in tokens_of(snapshot, picked.pages, 2)
    with pytest.raises(UsageError, match="nothing of these tokens"):
        select(snapshot, parse("tokens:-"), chain=(bytes(16),))


def test_groups_states_and_all() -> None:
    """`group:`, `state:` and `all` take exactly the pages with a key of theirs."""
    snapshot = gemma()
    assert snapshot.pages is not None
    columns = columns_of(snapshot.pages)
    assert len(select(snapshot, parse("all")).pages) == int(columns.cached.sum())
    swa = select(snapshot, parse("state:swa")).pages
    assert {int(columns.group[page]) for page in swa} == {0, 1}
    name = snapshot.geometry.groups[2].name
    assert {int(columns.group[page]) for page in select(snapshot, parse(f"group:{name}")).pages} == {2}
    with pytest.raises(UsageError, match="no group"):
        select(snapshot, parse("group:nothing"))


def test_stale_is_not_guessed() -> None:
    """`stale` takes pages from before the last change of weights, and says so where nobody watched the weights."""
    snapshot = gemma()
    with pytest.raises(InconclusiveError, match="weights"):
        select(snapshot, parse("stale"))
    assert snapshot.pages is not None
    columns = columns_of(snapshot.pages)
    change = sorted({int(stamp) for stamp in columns.stamp if stamp})[3]
    told = replace(snapshot, evidence=Evidence(weights=Weights(changes=(change,))))
    old = {page for page in range(columns.count) if columns.tokens[page] and columns.stamp[page] < change}
    assert set(select(told, parse("stale")).pages) == old
    assert old


def test_a_page_that_moved_before_the_plan_is_left_out() -> None:
    """Between page table and plan a page may get new content: it is not what was selected."""
    engine = Engine(gemma())
    picked = select(engine.full, parse("state:swa"))
    engine.moved = frozenset(picked.pages[:2])
    plan = make_plan(engine, engine.full, picked, deadline_s=1)
    assert not set(plan.pages) & engine.moved
    assert any("2 pages moved" in note for note in plan.notes)


def test_a_prefix_is_taken_whole_or_not_at_all() -> None:
    """Case 14: one page moved, and a plan about a prefix is refused with nothing taken."""
    engine = Engine(gemma())
    plan = make_plan(engine, engine.full, select(engine.full, parse("request:chatcmpl-alice")), deadline_s=1)
    engine.moved = frozenset(plan.pages[-1:])
    with pytest.raises(RefusedError, match="outdated"):
        apply_plan(engine, plan, quarantine=True, deadline_s=1)
    assert engine.evicted == ()


def test_a_bulk_plan_leaves_alone_what_moved() -> None:
    """A whole cache never holds still: what moved is left alone and counted, the rest goes."""
    engine = Engine(gemma())
    plan = make_plan(engine, engine.full, select(engine.full, parse("all")), deadline_s=1)
    engine.moved = frozenset(plan.pages[5:8])
    done = apply_plan(engine, plan, quarantine=True, deadline_s=1)
    assert done.skipped == 3
    assert done.pages == len(plan.pages) - 3
    assert not set(engine.evicted) & engine.moved
    assert len(plan.pages) < PART_PAGES, "one part; parts of a larger plan are tried on the real pool"


def test_plans_survive_a_file(tmp_path: Path) -> None:
    """A saved plan is the same plan, and nobody else may read it."""
    engine = Engine(gemma())
    plan = make_plan(engine, engine.full, select(engine.full, parse("state:swa")), deadline_s=1)
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = load_plan(path)
    assert replace(loaded, notes=plan.notes) == plan
    assert plan.groups == (0, 1)


def _newer(body: dict[str, Any]) -> str:
    return json.dumps({**body, "kvctl_plan": 99})


def _shortened(body: dict[str, Any]) -> str:
    return json.dumps(body)[:-20]


def _without_keys(body: dict[str, Any]) -> str:
    return json.dumps({**body, "entries": [{"group": 0}]})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(_newer, "newer"), (_shortened, "no plan"), (_without_keys, "damaged"), (lambda _: "[]", "no plan")],
)
def test_bad_plans_are_named(tmp_path: Path, spoil: Callable[[dict[str, Any]], str], message: str) -> None:
    """A plan that is newer, cut short, damaged or something else is one clear error."""
    path = tmp_path / "plan.json"
    save_plan(Plan(selector="all", engine=(1, 2), epoch=3, entries=()), path)
    path.write_text(spoil(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(FileError, match=message):
        load_plan(path)


def test_holders_are_named() -> None:
    """The plan says which requests hold its pages."""
    snapshot = gemma()
    assert holders_of(snapshot, select(snapshot, parse("state:swa")).pages) == ("chatcmpl-alice",)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Return a runner that no configuration of this machine reaches."""
    monkeypatch.setenv("KVCTL_CONFIG", str(tmp_path / "none.toml"))
    return Runner(capsys)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Return a function that puts an engine behind every target."""

    def put(*, allow_changes: bool) -> Engine:
        snapshot = gemma()
        engine = Engine(replace(snapshot, engine=replace(snapshot.engine, allow_changes=allow_changes)))
        monkeypatch.setattr("agent.session.open_target", lambda **_: engine)
        return engine

    return put


def test_the_command_is_a_dry_run(run: Runner, live: Callable[..., Engine]) -> None:
    """Without --yes the pages are shown and nothing is changed."""
    engine = live(allow_changes=True)
    ran = run("invalidate", "state:swa")
    assert ran.code == 0
    assert "dry run" in ran.out
    assert "--yes" in ran.err
    assert engine.evicted == ()
    data = run("invalidate", "state:swa", "-o", "json").json
    check_schema(data)
    assert data["applied"] is None
    assert data["pages"]


def test_yes_carries_it_out(run: Runner, live: Callable[..., Engine]) -> None:
    """With --yes exactly the planned pages go."""
    engine = live(allow_changes=True)
    data = run("invalidate", "state:swa", "--yes", "-o", "json").json
    check_schema(data)
    assert sorted(engine.evicted) == data["pages"]
    assert data["applied"]["pages"] == len(data["pages"])


def test_what_was_done_is_said(run: Runner, live: Callable[..., Engine]) -> None:
    """One request runs on; with --yes nothing is called a dry run, also where there is nothing to take."""
    engine = live(allow_changes=True)
    engine.full = replace(engine.full, evidence=Evidence(weights=Weights(changes=())))
    assert "1 request, which runs on undisturbed: chatcmpl-alice" in run("invalidate", "state:swa").out
    nothing = run("invalidate", "stale", "--yes")
    assert nothing.code == 0
    assert "dry run" not in nothing.out
    assert "nothing was changed: there is nothing to take" in nothing.out
    assert "nothing to take" in run("invalidate", "stale").out
    assert run("invalidate", "stale", "--yes", "-o", "json").json["applied"]["pages"] == 0


def test_a_read_only_engine_refuses(run: Runner, live: Callable[..., Engine]) -> None:
    """An engine that was started read-only is not even asked: exit code 5, and how to get it."""
    live(allow_changes=False)
    ran = run("invalidate", "all", "--yes")
    assert ran.code == 5
    assert "--allow-changes" in ran.err
    assert run("invalidate", "all").code == 0


def test_an_outdated_plan_is_exit_code_5(run: Runner, live: Callable[..., Engine], tmp_path: Path) -> None:
    """Case 14 through the command: plan, then a page moves, then apply."""
    engine = live(allow_changes=True)
    path = tmp_path / "plan"
    assert run("invalidate", "request:chatcmpl-alice", "--save-plan", path).code == 0
    engine.moved = frozenset(load_plan(path).pages[:1])
    ran = run("invalidate", "--plan", path, "--yes")
    assert ran.code == 5
    assert "outdated" in ran.err
    assert engine.evicted == ()


def test_a_plan_for_another_engine_is_refused(run: Runner, live: Callable[..., Engine], tmp_path: Path) -> None:
    """A plan names its engine by pid and start time."""
    live(allow_changes=True)
    path = tmp_path / "plan"
    save_plan(Plan(selector="all", engine=(1, 2), epoch=3, entries=()), path)
    ran = run("invalidate", "--plan", path, "--yes")
    assert ran.code == 5
    assert "another engine" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("invalidate",),
        ("invalidate", "all", "--plan", "x"),
        ("invalidate", "nonsense"),
        ("invalidate", "tokens:/no/file"),
    ],
)
def test_bad_usage(run: Runner, live: Callable[..., Engine], words: tuple[str, ...]) -> None:
    """What cannot be meant is exit code 2 with the next step."""
    live(allow_changes=True)
    ran = run(*words)
    assert ran.code == 2
    assert ran.err
