"""The queue between the probe's thread and the engine's: nothing in it is forgotten, first things come first."""

import threading
from collections.abc import Callable
from typing import Any

from agent.probe.guard import Guard
from agent.probe.lifecycle import Probe
from agent.probe.safepoint import AGAIN, Job, SafePoint
from tests.support.tiny_engine import TinyEngine


class Queue:
    """A safe point whose engine only counts how often it is woken."""

    def __init__(self) -> None:
        self.wakes = 0
        self.done: list[Job] = []
        self.point = SafePoint(Guard(), self._wake)

    def _wake(self) -> bool:
        self.wakes += 1
        return True

    def submit(self, run: Callable[[], Any]) -> None:
        """Queue a job."""
        self.point.submit(run, label="job", deadline_s=60.0, done=self.done.append)


def test_what_a_busy_engine_left_is_not_forgotten_when_it_goes_idle() -> None:
    """An engine may go idle after its last safe point as a busy one: the probe's tick wakes it for what is left."""
    queue, answers = Queue(), [AGAIN, "answer"]
    queue.submit(lambda: answers.pop(0))
    queue.point.drain(idle=False)
    assert queue.point.waiting
    before = queue.wakes
    queue.point.expire()
    assert queue.wakes == before + 1
    queue.point.drain(idle=True)
    assert [job.value for job in queue.done] == ["answer"]
    queue.point.expire()
    assert queue.wakes == before + 1, "nothing is left"


def test_idle_work_that_a_busy_engine_did_not_look_at_is_not_forgotten() -> None:
    """A table that was asked for in a busy engine's last step is sent although no job waits any more."""
    queue, chunks = Queue(), [True, False]
    queue.point.idle_work = lambda: chunks.pop(0)
    queue.submit(lambda: None)
    queue.point.drain(idle=False)
    before = queue.wakes
    queue.point.expire()
    assert queue.wakes == before + 1
    assert queue.point.drain(idle=True)
    assert not queue.point.drain(idle=True)
    queue.point.expire()
    assert not chunks
    assert queue.wakes == before + 2, "the first chunk woke the engine for the second"


def test_jobs_that_are_given_up_meanwhile_do_no_harm() -> None:
    """The probe's thread may empty the queue while the engine's thread is in it: the rest of the safe point goes on."""
    queue, chunks = Queue(), [False]
    queue.point.idle_work = chunks.pop
    queue.submit(queue.point.fail_all)
    queue.submit(lambda: None)
    queue.point.drain(idle=True)
    assert not chunks, "idle work was not looked at"


def test_an_idle_engine_without_a_thread_says_that_chunks_are_left() -> None:
    """Whoever pumps learns that there is more to do, so that a large table does not wait for the next question."""
    chunks = [True, True, False]
    point = SafePoint(Guard(), lambda: False, turn=threading.RLock())
    point.idle_work = lambda: chunks.pop(0)
    assert [point.pump() for _ in range(3)] == [True, True, False]


def test_a_job_comes_after_what_the_steps_left() -> None:
    """Also on the probe's thread: what a step only noted is worked out before a job reads or changes anything."""
    order: list[str] = []
    probe = Probe(TinyEngine(), turn=threading.RLock(), environ={})
    probe.before_shadow = lambda: order.append("noted")
    probe.end_schedule(object(), ())
    probe.safe_point.submit(lambda: order.append("job"), label="job", deadline_s=60.0, done=lambda _job: None)
    probe.safe_point.pump()
    assert order == ["noted", "job"]
