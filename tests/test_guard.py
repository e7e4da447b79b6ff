"""The guard: nothing of ours raises into the host, costs more than allowed, or stays behind."""

import threading
from typing import Any

import pytest

from agent.probe.guard import FORGIVE_STEPS, Guard, Limits
from agent.probe.patches import Patches


class Host:
    """Something with methods that a probe may hook."""

    count = 0

    def work(self, amount: int = 1) -> int:
        """Do something."""
        self.count += amount
        return self.count

    def fail(self) -> None:
        """The host's own error."""
        raise LookupError("the host's own")

    @staticmethod
    def free(value: int) -> int:
        """No self."""
        return value

    @classmethod
    def make(cls) -> "Host":
        """Class method."""
        return cls()


class Child(Host):
    """Inherits everything."""


def broken(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("ours")


def test_call_returns_the_result() -> None:
    """What succeeds is returned, and counts as time in hooks after the step."""
    guard = Guard()
    assert guard.call(lambda a, b=0: a + b, 1, b=2) == 3
    guard.step()
    assert guard.spent_ns > 0
    assert guard.state()["errors"] == 0


def test_call_never_raises() -> None:
    """An error of ours becomes None, is counted and remembered."""
    guard = Guard()
    assert guard.call(broken) is None
    assert guard.errors == 1
    assert guard.last_error is not None
    assert "RuntimeError: ours" in guard.last_error


def test_interrupts_of_the_host_pass() -> None:
    """A shutdown of the host is not ours to swallow."""

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Guard().call(leave)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("way", ["after", "before"])
def test_stand_ins_keep_the_hosts_answer(way: str, timed: bool) -> None:
    """A hooked method returns the same, with our hook raising at each call."""
    guard = Guard(limits=Limits(error_limit=1000))
    host = Host()
    stand_in = getattr(guard, way)(host.work, broken, timed=timed)
    assert [stand_in(), stand_in(amount=2)] == [1, 3]
    assert guard.errors == 2
    assert stand_in.__name__ == "work"


def test_after_sees_result_and_arguments() -> None:
    """An observer is given what was returned and what was asked."""
    seen: list[Any] = []
    guard = Guard()
    guard.after(Host().work, lambda *args, **kwargs: seen.append((args, kwargs)))(5)
    assert seen == [((5, 5), {})]


def test_the_hosts_own_errors_pass_and_are_not_observed() -> None:
    """An exception of the host arrives unchanged at its caller."""
    seen: list[Any] = []
    stand_in = Guard().after(Host().fail, lambda *_: seen.append(1))
    with pytest.raises(LookupError, match="the host's own"):
        stand_in()
    assert seen == []


def test_around_comes_back_whatever_the_host_does() -> None:
    """Both sides are called with what was asked, the second is told of a failure, and neither changes anything."""
    seen: list[Any] = []
    guard = Guard(limits=Limits(error_limit=1000))
    host = Host()
    watched = [
        guard.around(method, lambda *args: seen.append(args), lambda failed, *args: seen.append((failed, *args)))
        for method in (host.work, host.fail)
    ]
    assert watched[0](2) == 2
    with pytest.raises(LookupError, match="the host's own"):
        watched[1]()
    assert seen == [(2,), (False, 2), (), (True,)]
    assert guard.around(host.work, broken, broken)(1) == 3
    assert guard.errors == 2
    guard.open("switched off")
    assert watched[0](1) == 4
    assert len(seen) == 4


def test_breaker_opens_after_errors_and_hooks_leave() -> None:
    """After the limit every hook is gone, the host works on, the reason is kept."""
    said: list[str] = []
    guard = Guard(limits=Limits(error_limit=3), log=said.append)
    host, patches = Host(), Patches()
    patches.set(host, "work", guard.after(host.work, broken))
    guard.on_open(patches.remove)
    assert [host.work() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert guard.errors == 3
    assert not guard.on
    assert vars(host).keys() == {"count"}
    assert guard.reason is not None
    assert "3 errors" in guard.reason
    assert any("probe off" in line for line in said)


def test_errors_are_forgiven_over_time() -> None:
    """A rare error now and then does not add up for ever."""
    guard = Guard(limits=Limits(error_limit=2))
    for _ in range(5):
        guard.call(broken)
        for _ in range(FORGIVE_STEPS):
            guard.step()
    assert guard.on
    assert guard.errors == 5


def test_breaker_opens_when_steps_cost_too_much() -> None:
    """Steps that go over the budget of thread CPU again and again open the breaker."""
    guard = Guard(limits=Limits(step_budget_ns=1, overrun_limit=4, overrun_window=8))
    guard.on_open(lambda: opened.append(True))
    opened: list[bool] = []
    for _ in range(10):
        guard.call(sum, range(2000))
        guard.step()
    assert opened == [True]
    assert guard.reason is not None
    assert "cost more than" in guard.reason


def test_cheap_steps_never_open_it() -> None:
    """Steps within the budget leave the breaker closed, however many there are."""
    guard = Guard(limits=Limits(step_budget_ns=10**12))
    for _ in range(1000):
        guard.call(sum, range(10))
        guard.step()
    assert guard.on
    assert guard.overruns == 0


def test_open_runs_every_removal_even_if_one_fails() -> None:
    """A failing removal does not keep the others from being done, latest first."""
    done: list[str] = []
    guard = Guard()
    guard.on_open(lambda: done.append("first"))
    guard.on_open(broken)
    guard.on_open(lambda: done.append("last"))
    guard.open("enough")
    guard.open("again")
    assert done == ["last", "first"]
    assert guard.reason == "enough"


def test_open_from_many_threads_removes_once() -> None:
    """Whoever opens it, the hooks are taken out once."""
    removed: list[int] = []
    guard = Guard()
    guard.on_open(lambda: removed.append(1))
    threads = [threading.Thread(target=guard.open, args=(f"thread {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert removed == [1]


def test_switched_off_hooks_are_passages() -> None:
    """With the breaker open a stand-in that could not be removed does nothing of ours."""
    seen: list[int] = []
    guard = Guard()
    stand_in = guard.after(Host().work, lambda *_: seen.append(1))
    guard.open("off")
    assert stand_in() == 1
    assert seen == []


def test_a_failing_log_is_no_error() -> None:
    """A log that raises does not disturb anybody."""
    guard = Guard(log=broken)
    assert guard.call(broken) is None
    guard.open("off")
    assert not guard.on


@pytest.mark.parametrize("name", ["work", "free", "make", "count"])
@pytest.mark.parametrize("owner", [Host, Child, Host()])
def test_patches_restore_exactly(owner: Any, name: str) -> None:
    """Own, inherited, static and class attributes are the very objects of before, inherited ones inherited again."""
    before = dict(vars(owner))
    patches = Patches()
    patches.set(owner, name, lambda *_: None)
    patches.set(owner, name, lambda *_: 1)
    assert vars(owner)[name] is not before.get(name)
    patches.remove()
    after = dict(vars(owner))
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in before)
    assert len(patches) == 0


def test_patches_leave_what_others_wrapped() -> None:
    """A wrapper that somebody put on ours stays; ours below it is a passage once the guard is off."""
    guard, patches, host = Guard(), Patches(), Host()
    seen: list[int] = []
    patches.set(host, "work", guard.after(host.work, lambda *_: seen.append(1)))
    ours = host.work
    host.work = lambda amount=1: ours(amount) * 10  # type: ignore[method-assign]
    guard.on_open(patches.remove)
    guard.open("off")
    assert host.work() == 10
    assert seen == []
    assert patches.left_alone == ["Host.work"]
