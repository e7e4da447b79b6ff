"""The disk tier: killed, full, torn, foreign - no wrong page is ever used, and everything unusable is named."""

import os
import random
import signal
from pathlib import Path

import pytest
import torch

from agent.errors import UsageError
from agent.reference.config import EngineConfig, ModelConfig
from agent.reference.disk import Disk, PageName, UnusableFileError, decode, encode
from agent.reference.engine import Engine
from agent.reference.faults import Fault, Faults
from agent.reference.lookup import TierStatus
from agent.reference.transfers import Transfers
from tests.support.reference import MODEL, Recorder, Truth, check_pages, swap_out
from tests.support.waiting import wait_for

KILLS = 200
PAGES = 6
PRINT = "f" * 32


def _name(number: int) -> PageName:
    return PageName(group=number % 3, key=bytes([number]) * 16)


def _content(number: int) -> torch.Tensor:
    return torch.full((1500,), float(number), dtype=torch.float64) + torch.arange(1500)


def _write_all(folder: Path, stop_at: int) -> None:
    """Write pages, and kill this process with SIGKILL at the n-th step of disk I/O."""
    left = [stop_at]

    def on_io(_: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    disk = Disk(folder, PRINT, faults=Faults(), on_io=on_io)
    for number in range(PAGES):
        disk.write(_name(number), 16, _content(number), PRINT)
        disk.acknowledge(_name(number))


def _steps(folder: Path) -> int:
    steps: list[str] = []
    disk = Disk(folder, PRINT, faults=Faults(), on_io=steps.append)
    for number in range(PAGES):
        disk.write(_name(number), 16, _content(number), PRINT)
    disk.close()
    return len(steps)


def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """After SIGKILL at random steps of disk I/O every page that is offered is whole, and the rest is counted."""
    total, dice, unfinished = _steps(tmp_path / "dry"), random.Random(11), 0
    for attempt in range(KILLS):
        folder, stop_at = tmp_path / str(attempt), dice.randrange(total)
        child = os.fork()
        if child == 0:
            try:
                _write_all(folder, stop_at)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer was to be killed"
        disk = Disk(folder, PRINT, faults=Faults())
        for name in disk.ready:
            number = name.key[0]
            assert torch.equal(disk.read(name), _content(number)), f"killed at step {stop_at}"
        unfinished += disk.unusable.get("unfinished", 0)
        assert set(disk.unusable) <= {"unfinished"}
        assert not [path for path in folder.iterdir() if path.name.startswith(".tmp-")]
        disk.close()
    assert unfinished > KILLS // 4, "kills in the middle of a write must be among them"


@pytest.mark.parametrize("keep", ["none", "header length", "half the header", "half the body", "all but one byte"])
def test_a_truncated_file_is_set_aside(keep: str, tmp_path: Path) -> None:
    """A file cut anywhere is quarantined with a reason when the folder is opened, and is absent afterwards."""
    disk = Disk(tmp_path, PRINT, faults=Faults())
    disk.write(_name(1), 16, _content(1), PRINT)
    disk.close()
    path = tmp_path / _name(1).file
    size = path.stat().st_size
    sizes = {
        "none": 0,
        "header length": 8,
        "half the header": 60,
        "half the body": size // 2,
        "all but one byte": size - 1,
    }
    os.truncate(path, sizes[keep])
    disk = Disk(tmp_path, PRINT, faults=Faults())
    assert not disk.ready
    assert disk.unusable == {"truncated": 1}
    assert [p.name for p in disk.quarantine.iterdir()] == [f"truncated-{_name(1).file}"]
    disk.close()


def test_every_flipped_byte_is_noticed() -> None:
    """No single changed byte of a file gets through: header, fingerprint, checksum or body."""
    data = encode(_name(1), 16, _content(1)[:20], PRINT)
    assert torch.equal(decode(_name(1), data, PRINT), _content(1)[:20])
    ignored = []
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 0x01
        try:
            value = decode(_name(1), bytes(spoilt), PRINT)
        except UnusableFileError:
            continue
        assert torch.equal(value, _content(1)[:20]), "a change that matters got through"
        ignored.append(position)
    assert len(ignored) < 20, "only padding and the count of tokens may change without an effect"


def test_a_file_under_another_name_is_set_aside(tmp_path: Path) -> None:
    """A page renamed to another key is not used: content is addressed by what it is."""
    disk = Disk(tmp_path, PRINT, faults=Faults())
    disk.write(_name(1), 16, _content(1), PRINT)
    (tmp_path / _name(1).file).rename(tmp_path / _name(2).file)
    (tmp_path / "README").write_text("somebody else's")
    disk.close()
    disk = Disk(tmp_path, PRINT, faults=Faults())
    assert disk.unusable == {"misnamed": 1, "unknown_name": 1}
    assert not disk.ready
    disk.close()


def test_another_fingerprint_is_foreign_and_left_alone(tmp_path: Path) -> None:
    """Pages of another configuration are neither used nor removed: they may belong to somebody."""
    disk = Disk(tmp_path, PRINT, faults=Faults())
    disk.write(_name(1), 16, _content(1), "0" * 32)
    disk.close()
    disk = Disk(tmp_path, PRINT, faults=Faults())
    assert (disk.ready, disk.foreign, disk.unusable) == (set(), {_name(1): "0" * 32}, {"foreign": 1})
    assert (tmp_path / _name(1).file).exists()
    disk.close()


def test_a_full_disk_loses_a_copy_and_nothing_else(tmp_path: Path) -> None:
    """A write that fails for want of space leaves no file and is counted; later writes go on."""
    faults = Faults()
    disk = Disk(tmp_path, PRINT, faults=faults)
    faults.once(Fault.FULL_DISK)
    with pytest.raises(OSError, match="space"):
        disk.write(_name(1), 16, _content(1), PRINT)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [".lock"]
    disk.write(_name(2), 16, _content(2), PRINT)
    disk.acknowledge(_name(2))
    assert torch.equal(disk.read(_name(2)), _content(2))
    disk.close()


def test_one_engine_owns_a_folder(tmp_path: Path) -> None:
    """A second engine on the same folder is refused: two writers would count on each other's files."""
    disk = Disk(tmp_path, PRINT, faults=Faults())
    with pytest.raises(UsageError, match="in use"):
        Disk(tmp_path, PRINT, faults=Faults())
    disk.close()


# --- the engine on top -----------------------------------------------------------------------------------------

PROMPT = random.Random(9).choices(range(MODEL.vocabulary), k=100)


def _engine(folder: Path, truth: Truth, *, host: int = 0, model: ModelConfig = MODEL) -> Engine:
    config = EngineConfig(disk_folder=str(folder), host_pages=host, poison=True, degrade=False)
    return Engine(model, config, weights=truth.weights)


def _first(folder: Path, truth: Truth) -> None:
    engine = _engine(folder, truth)
    engine.submit("first", PROMPT, 4)
    engine.run()
    swap_out(engine)
    engine.close()


def test_a_restart_resumes_from_disk(tmp_path: Path) -> None:
    """After a restart the first request loads its prefix from disk and answers as a full recomputation does."""
    truth = Truth()
    _first(tmp_path, truth)
    engine = _engine(tmp_path, truth)
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 5], 4)
    engine.run()
    outcomes = [record.outcome.value for record in engine.scheduler.records]
    assert outcomes[0] == "prefetching"
    assert engine.scheduler.records[-1].reused == 96
    assert recorder.worst(truth) < 1e-9
    check_pages(engine)
    engine.close()


def test_a_restart_in_the_middle_keeps_answers_right(tmp_path: Path) -> None:
    """Running requests and those that come after go on from disk, and answer as a full recomputation does."""
    truth = Truth()
    engine = _engine(tmp_path, truth, host=100)
    engine.submit("first", PROMPT, 4)
    engine.run()
    swap_out(engine)
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 5], 8)
    for _ in range(6):
        engine.step()
    engine.restart()
    assert not engine.pages.index
    engine.submit("third", [*PROMPT, 6], 4)
    engine.run()
    assert engine.prefetcher.loaded > 0
    assert recorder.worst(truth) < 1e-9
    check_pages(engine)
    engine.close()


def test_a_copy_under_way_does_not_survive_host_memory(tmp_path: Path) -> None:
    """Copies into host memory that were under way when it was lost are no entries of it, and their rows are free."""
    engine = _engine(tmp_path, Truth(), host=200)
    engine.submit("first", PROMPT, 1)
    engine.run()
    for pool in engine.pages.evictable.values():
        for page in list(pool):
            engine.pages.evict(page)
    assert engine.tiers.host
    engine.restart()
    swap_out(engine)
    assert not engine.tiers.host
    assert len(engine.tiers._free) == 200
    engine.close()


@pytest.mark.parametrize("damage", ["truncate", "remove", "foreign", "flip"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_damaged_files_are_never_used(damage: str, when: str, tmp_path: Path) -> None:
    """Files damaged before or after the engine opened the folder: the answer is right, the damage counted."""
    truth, dice = Truth(), random.Random(1)
    _first(tmp_path, truth)
    engine = _engine(tmp_path, truth) if when == "after" else None
    victims = dice.sample(sorted(path for path in tmp_path.iterdir() if path.suffix), 9)
    for path in victims:
        data = path.read_bytes()
        name = PageName.parse(path.name)
        assert name is not None
        if damage == "truncate":
            os.truncate(path, len(data) // 2)
        elif damage == "remove":
            path.unlink()
        elif damage == "foreign":
            path.write_bytes(encode(name, 16, torch.ones(4, dtype=torch.float64), "0" * 32))
        else:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    engine = engine or _engine(tmp_path, truth)
    assert engine.tiers.disk is not None
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 5], 4)
    engine.run()
    assert recorder.worst(truth) < 1e-9
    if not (damage == "remove" and when == "before"):
        assert sum(engine.tiers.disk.unusable.values()) > 0
    engine.close()


def test_nothing_is_read_before_its_acknowledgement(tmp_path: Path) -> None:
    """A copy that is written and not acknowledged is in transit, and a look-up does not count on it."""
    truth = Truth()
    engine = _engine(tmp_path, truth, host=200)
    engine.submit("first", PROMPT, 1)
    engine.run()
    for pool in engine.pages.evictable.values():
        for page in list(pool):
            engine.pages.evict(page)
    engine.transfers.pump(10_000)
    name = next(iter(engine.tiers.host))
    assert engine.tiers.ask(name.group, name.key) is TierStatus.IN_TRANSIT
    engine.collect()
    assert engine.tiers.ask(name.group, name.key) is TierStatus.READY
    engine.close()


def test_other_weights_use_nothing_of_the_old_ones(tmp_path: Path) -> None:
    """After new weights were loaded neither device, host nor disk pages of the old ones are used, also on the way."""
    truth, other = Truth(), Truth(ModelConfig(seed=2))
    engine = _engine(tmp_path, Truth(), host=200)
    engine.submit("first", PROMPT, 4)
    engine.run()
    swap_out(engine)
    engine.submit("loading", [*PROMPT, 5], 4)
    engine.step()
    engine.load_weights(2)
    recorder = Recorder(engine)
    engine.submit("second", [*PROMPT, 6], 4)
    engine.run()
    assert recorder.worst(other) < 1e-9
    swap_out(engine)
    engine.close()
    again = _engine(tmp_path, truth)
    recorder = Recorder(again)
    again.submit("third", [*PROMPT, 7], 4)
    again.run()
    assert recorder.worst(truth) < 1e-9
    assert again.tiers.disk is not None
    assert again.tiers.disk.foreign, "pages of the second weights are foreign to the first"
    again.close()


def test_transfers_in_a_thread_give_the_same_answers(tmp_path: Path) -> None:
    """With copies made by a thread of its own the answers are those of a full recomputation."""
    truth, dice = Truth(), random.Random(4)
    config = EngineConfig(disk_folder=str(tmp_path), host_pages=40, poison=True, tail_pages=120, window_pages=40)
    engine = Engine(MODEL, config, weights=truth.weights, threaded_transfers=True)
    recorder = Recorder(engine)
    number = 0
    # The thread may be slower than the engine, which then computes anew: traffic goes on until something was loaded.
    while number < 25 or not (engine.prefetcher.loaded or number >= 1_000):
        engine.submit(f"r{number}", [*PROMPT[: dice.randint(1, 100)], number % 90], 3)
        number += 1
        for _ in range(dice.randint(0, 6)):
            engine.step()
            idle = [page for pool in engine.pages.evictable.values() for page in pool]
            for page in dice.sample(idle, len(idle) // 2):
                engine.pages.evict(page)
    engine.run(20_000)
    assert recorder.worst(truth) < 1e-9
    assert engine.prefetcher.loaded > 0
    engine.close()


@pytest.mark.parametrize(
    "failure", [RuntimeError("out of memory"), MemoryError(), OSError(28, "full"), OSError(5, "io")]
)
def test_a_copy_that_fails_is_acknowledged_and_the_next_one_made(failure: Exception) -> None:
    """Whatever a copy fails for, whoever waits for it is told, and the thread goes on."""

    def fail() -> list[torch.Tensor]:
        raise failure

    transfers, done = Transfers(Faults(), threaded=True), []
    wanted = {transfers.submit(fail), transfers.submit(lambda: [torch.zeros(1)])}

    def both() -> bool:
        done.extend(transfers.collect())
        return {one.number for one in done} == wanted

    wait_for(both, "both copies to be acknowledged")
    assert [one.error is None for one in sorted(done, key=lambda one: one.number)] == [False, True]
    transfers.close()
