"""One reader's side of explanations that travel between readers: posts its own, and learns those of others.

Invariant: nobody waits for a post but who leaves, and briefly (one is under way at a time, small enough for the
socket), and nothing that fails here reaches who follows: an agent that does not know the operation, or refuses a post,
is asked no more. What others say is judged before it is used, and only adds to what the engine itself recorded. Used by
:mod:`agent.session`.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from .client import Client
from .errors import DeadlineError, KvctlError, ProtocolError, TargetError
from .explainedformat import MAX_LINE, Explanation, decode, encode, knowledge
from .model.decision import Decision

POST_S: Final = 1.0
"""Pause between two posts."""
BUSY_S: Final = 0.1
"""Pause between two posts while a whole one waits: a bounded share of the probe's thread, whatever is decided."""
LINES: Final = 64
CHARACTERS: Final = 32 << 10
"""Of one post: the socket takes them at once."""
PENDING: Final = 1024
"""Explanations that wait to be posted; the oldest go first."""
LEAVING_S: Final = 0.5
"""How long a reader that leaves waits for the answer to its last post but one, so that it can post what is left."""
ASK_S: Final = 2.0
KNOWN: Final = 1 << 14
"""Explanations that are remembered; more only of decisions that are asked for at once."""


class Sharing:
    """Explanations of one engine's decisions.

    Args:
        client: Connection to the engine.
        clock: Seconds that only rise.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._pending: deque[str] = deque(maxlen=PENDING)
        self._post_at = 0.0
        self._known: dict[int, Explanation] = {}
        self._mark = 0
        """How far the others' explanations were read, of decisions after ``_after``."""
        self._after: int | None = None
        ops = client.hello.get("ops")
        self.off: str | None = None
        """Why nothing is shared."""
        if not isinstance(ops, list) or "explained" not in ops:
            self.off = "its agent is older and keeps no explanations"

    # ------------------------------------------------------------------ own ones

    def add(self, decision: Decision) -> None:
        """Take over a decision that this reader explained; it is posted later."""
        if self.off is None and decision.id and decision.logical is not None:
            line = encode(decision)
            if len(line) <= MAX_LINE:
                self._pending.append(line)

    def post(self, *, last: bool = False) -> None:
        """Post what waits, if it is time; does not wait for an answer.

        Args:
            last: This reader leaves: as much as one post holds, whatever the time.
        """
        if not self._pending or self.off is not None:
            return
        now = self._clock()
        due = self._post_at if len(self._pending) < LINES else self._post_at - POST_S + BUSY_S
        if now < due and not last:
            return
        try:
            if not self._answered(LEAVING_S if last else 0.0):
                return
            self._post_at = now + POST_S
            self._client.tell("explained", lines="\n".join(self._batch()))
        except KvctlError as error:
            self._failed(error)

    def _answered(self, within_s: float) -> bool:
        """Whether the last post was answered."""
        self._client.listen(within_s=within_s)
        return not self._client.telling

    def _batch(self) -> list[str]:
        lines: list[str] = []
        size = 0
        while self._pending and len(lines) < LINES and size + len(self._pending[0]) < CHARACTERS:
            lines.append(self._pending.popleft())
            size += len(lines[-1]) + 1
        return lines

    # --------------------------------------------------------------- those of others

    def told(self, decisions: Sequence[Decision], *, groups: int) -> tuple[Decision, ...]:
        """Return decisions explained as far as any reader knows; what nobody explained is as it was.

        Args:
            decisions: Oldest first.
            groups: Cache groups of the engine.
        """
        if decisions and self.off is None:
            try:
                self._ask(decisions[0].id - 1, groups)
            except KvctlError as error:
                self._failed(error)
        return tuple(map(self._completed, decisions))

    def _ask(self, after: int, groups: int) -> None:
        if self._after is None or after < self._after:
            self._after, self._mark = after, 0
        answer = self._client.call("explained", since=self._mark, after=self._after, deadline_s=ASK_S)
        try:
            lines, self._mark = str(answer["lines"]), int(answer["mark"])
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError("the agent's explanations cannot be read") from error
        for line in lines.split("\n") if lines else ():
            try:
                number, explanation = decode(line, groups=groups)
            except ProtocolError:
                continue
            self._known[number] = explanation
        if len(self._known) > KNOWN:
            # What came before those that are asked for now is asked for again if it must be.
            self._known = {number: found for number, found in self._known.items() if number > after}
            self._after = after

    def _completed(self, decision: Decision) -> Decision:
        found = self._known.get(decision.id)
        if found is None or not found.fits(decision) or knowledge(found) <= knowledge(decision):
            return decision
        return found.completed(decision)

    def _failed(self, error: KvctlError) -> None:
        """Whatever refuses it once refuses it always; an engine that is gone or busy is somebody else's news."""
        if not isinstance(error, TargetError | DeadlineError):
            self.off = f"{error.what}: {error.why}" if error.why else error.what
