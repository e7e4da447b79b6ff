"""The probe's end of the socket: one thread, non-blocking, that never lets a reader hurt the engine.

Invariant: memory for a reader is bounded (frames, backlog, questions at once), a reader that does not read is closed,
and nothing here runs on the engine's thread except :meth:`Server.finished`. Started by ``lifecycle``.
"""

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .. import paths, wire
from ..errors import AgentError, KvctlError, ProtocolError, RefusedError
from .answers import Deferred
from .connection import Connection, listen
from .guard import Guard
from .operations import Operations
from .safepoint import Job

MAX_READERS: Final = 16
MAX_QUESTIONS: Final = 8
"""Questions of one reader that may wait for the engine at once."""
GREETING_S: Final = 5.0
MAX_WAITING: Final = 1 << 20
"""Bytes that a reader may leave unread before its further questions are left unread, too."""
STALL_S: Final = 30.0
"""A reader that takes none of its bytes for this long is closed."""
PAUSE_S: Final = 100e-6
"""Rest after each question: the engine's thread gets the interpreter at once instead of after a switch interval."""
TICK_S: Final = 1.0
PUMP_S: Final = 0.005
"""How often jobs are offered to an idle engine that has no thread of its own."""
_OVERFLOW_UID: Final = 65534
_CREDENTIALS: Final = struct.Struct("3i")


class Server:
    """Listen and answer.

    Args:
        folder: Runtime folder (0700, ours).
        name: Identity for the socket's name.
        operations: What the questions mean.
        guard: Runs everything that could fail.
        allowed: Uids that may connect.
        on_tick: Called about once a second.
    """

    def __init__(
        self,
        folder: Path,
        name: paths.SocketName,
        operations: Operations,
        guard: Guard,
        *,
        allowed: frozenset[int],
        on_tick: Callable[[], object] | None = None,
    ) -> None:
        self.path = folder / name.text()
        self._operations = operations
        self._guard = guard
        self._allowed = allowed
        self._on_tick = on_tick
        self._connections: set[Connection] = set()
        self._finished: deque[tuple[Connection, Any, Deferred, Job]] = deque()
        self._stop = False
        self._listener = listen(folder, name.text(), MAX_READERS)
        try:
            self._selector = selectors.DefaultSelector()
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._listener.close()
            self.path.unlink(missing_ok=True)
            raise
        self._deaf = False
        """Nobody is accepted until the next tick: there are no descriptors, and the waiting reader would wake us on
        and on."""
        self._thread = threading.Thread(target=self._run, name="kvctl-probe", daemon=True)
        self.refused = 0

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The host may not have another one; nothing is left behind.
        """
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            self._thread.start()
        except RuntimeError:
            self._close_all()
            os.close(self._wake)
            raise

    def stop(self) -> None:
        """End the thread and remove the socket. Any thread; does not wait."""
        self._stop = True
        self.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, unless this is that thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def notify(self) -> None:
        """Make the thread look around. Any thread; costs a microsecond."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def abandon(self) -> None:
        """In a forked child, where the thread does not exist: close what belongs to the parent."""
        for connection in self._connections:
            connection.link.close()
        self._connections.clear()
        self._listener.close()
        wake, self._wake = self._wake, -1
        with contextlib.suppress(OSError):
            os.close(wake)

    # ------------------------------------------------------------------- loop

    def _run(self) -> None:
        self._guard.attempt(self._loop)
        self._guard.attempt(self._close_all)

    def _loop(self) -> None:
        next_tick, more = time.monotonic() + TICK_S, False
        while not self._stop:
            pumping = self._operations.safe_point.turn is not None and (more or self._operations.safe_point.waiting)
            for key, events in self._selector.select(PUMP_S if pumping else TICK_S):
                self._guard.attempt(self._serve, key, events)
            if self._operations.safe_point.turn is not None:
                more = bool(self._guard.attempt(self._operations.safe_point.pump).value)
            while self._finished:
                failed = self._guard.attempt(self._answer_finished, *self._finished.popleft()).error
                if failed is not None:
                    self._guard.last_error = f"answering: {type(failed).__name__}: {failed}"[:500]
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._guard.attempt(self._tick, now)

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fileobj == self._wake:
            with contextlib.suppress(OSError):
                os.eventfd_read(self._wake)
        else:
            connection: Connection = key.data
            failed = self._guard.attempt(self._exchange, connection, events).error
            if failed is not None:
                self._close(connection)

    def _tick(self, now: float) -> None:
        if self._deaf:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._deaf = False
        for connection in list(self._connections):
            stalled = connection.out and now - connection.since > STALL_S
            if stalled or (not connection.greeted and now - connection.since > GREETING_S):
                self._close(connection)
        if self._on_tick is not None:
            self._on_tick()

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._selector.unregister(self._listener)
            self._deaf = True
            return
        link.settimeout(0)
        pid, uid, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        connection = Connection(link, pid, uid)
        self._connections.add(connection)
        self._selector.register(link, selectors.EVENT_READ, connection)
        refusal = self._refusal(pid, uid)
        if refusal is not None:
            self.refused += 1
            connection.closing = True
            self._send(connection, {"error": wire.error_to_plain(refusal)})

    def _refusal(self, pid: int, uid: int) -> KvctlError | None:
        if uid not in self._allowed or uid == _OVERFLOW_UID:
            return RefusedError(
                f"uid {uid} may not talk to this engine",
                next_step="run kvctl as the engine's user, or start the engine with KVCTL_ALLOWED_UIDS",
            )
        if pid <= 0:
            return RefusedError("a reader from another process namespace is refused", next_step="run kvctl inside it")
        if len(self._connections) > MAX_READERS:
            return RefusedError(
                f"{MAX_READERS} readers are connected already", next_step="close one, or ask the exporter's endpoint"
            )
        return None

    def _exchange(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ and connection.waiting <= MAX_WAITING:
            try:
                data = connection.link.recv(1 << 16)
            except BlockingIOError:
                data = None
            except OSError:
                data = b""
            if data == b"":
                self._close(connection)
                return
            if data and not connection.closing:
                connection.frames.feed(data)
        if connection in self._connections:
            self._flush(connection)
            self._take_frames(connection)

    def _take_frames(self, connection: Connection) -> None:
        try:
            while self._listens_to(connection) and (message := connection.frames.next()) is not None:
                if connection.greeted:
                    self._question(connection, message)
                else:
                    self._greeting(connection, message)
        except ProtocolError as error:
            connection.closing = True
            self._send(connection, {"ok": False, "error": wire.error_to_plain(error)})

    def _listens_to(self, connection: Connection) -> bool:
        """A reader that does not take its answers gets no further ones."""
        return not connection.closing and connection.waiting <= MAX_WAITING and connection in self._connections

    def _greeting(self, connection: Connection, message: dict[str, Any]) -> None:
        hello = message.get("hello")
        if not isinstance(hello, dict) or hello.get("protocol") != wire.PROTOCOL:
            found = hello.get("protocol") if isinstance(hello, dict) else None
            raise ProtocolError(
                "the greeting cannot be understood",
                why=f"this agent speaks protocol {wire.PROTOCOL}, it was greeted in {str(found)[:20]}",
                next_step="use the same version of kvctl on both sides",
            )
        connection.greeted = True
        connection.frames.limit = wire.MAX_REQUEST
        self._send(connection, {"hello": self._operations.hello()})

    def _question(self, connection: Connection, message: dict[str, Any]) -> None:
        number = message.get("id")
        if connection.questions >= MAX_QUESTIONS:
            self._fail(connection, number, RefusedError(f"{MAX_QUESTIONS} questions wait already"))
            return
        answered = self._guard.attempt(self._operations.ask, connection.reader, message)
        if answered.error is not None:
            self._fail(connection, number, answered.error)
        elif isinstance(answered.value, Deferred):
            deferred = answered.value
            connection.questions += 1
            self._operations.safe_point.submit(
                deferred.run,
                label=deferred.label,
                deadline_s=deferred.deadline_s,
                done=lambda job: self.finished(connection, number, deferred, job),
            )
        else:
            self._send(connection, {"id": number, "ok": True, "result": answered.value})
        # Whoever asks without end must not keep the interpreter from the engine's thread.
        time.sleep(PAUSE_S)

    def finished(self, connection: Connection, number: Any, deferred: Deferred, job: Job) -> None:
        """Hand over a job's result. Engine's thread."""
        self._finished.append((connection, number, deferred, job))
        self.notify()

    def _answer_finished(self, connection: Connection, number: Any, deferred: Deferred, job: Job) -> None:
        connection.questions -= 1
        descriptor = deferred.descriptor(job.value) if deferred.descriptor is not None and job.error is None else None
        if connection not in self._connections:
            if descriptor is not None:
                os.close(descriptor)
            self._operations.left(connection.reader)
            return
        if job.error is not None:
            self._fail(connection, number, job.error)
            return
        finished = self._guard.attempt(deferred.finish, job.value)
        if finished.error is None:
            answer = {"id": number, "ok": True, "result": finished.value}
            finished = self._guard.attempt(self._send, connection, answer, descriptor)
        elif descriptor is not None:
            os.close(descriptor)
        if finished.error is not None:
            self._fail(connection, number, finished.error)

    def _fail(self, connection: Connection, number: Any, error: Exception) -> None:
        if not isinstance(error, KvctlError):
            error = AgentError("the agent failed to answer", why=f"{type(error).__name__}: {error}"[:500])
        self._send(connection, {"id": number, "ok": False, "error": wire.error_to_plain(error)})

    def _send(self, connection: Connection, message: dict[str, Any], descriptor: int | None = None) -> None:
        encoded = self._guard.attempt(wire.encode, message)
        frame = encoded.value
        if frame is None or connection.waiting + len(frame) > wire.MAX_REPLY:
            if descriptor is not None:
                os.close(descriptor)
            if encoded.error is not None:
                raise encoded.error
            self._close(connection)
            return
        if not connection.out:
            connection.since = time.monotonic()
        connection.out.append((memoryview(frame), descriptor))
        connection.waiting += len(frame)
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                part, descriptor = connection.out[0]
                if descriptor is None:
                    sent = connection.link.send(part)
                else:
                    sent = socket.send_fds(connection.link, [part], [descriptor])
                connection.since = time.monotonic()
                connection.waiting -= sent
                if sent < len(part):
                    connection.out[0] = (part[sent:], None)
                else:
                    connection.out.popleft()
                if descriptor is not None:
                    os.close(descriptor)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        if connection.closing and not connection.out:
            self._close(connection)
            return
        reads = selectors.EVENT_READ if connection.waiting <= MAX_WAITING else 0
        events = reads | (selectors.EVENT_WRITE if connection.out else 0)
        if connection in self._connections:
            self._selector.modify(connection.link, events, connection)

    def _close(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link)
        connection.link.close()
        for _, descriptor in connection.out:
            if descriptor is not None:
                os.close(descriptor)
        connection.out.clear()
        self._operations.left(connection.reader)

    def _close_all(self) -> None:
        # The wake descriptor stays open: the engine's thread may write to it once more, so its number must stay ours.
        while self._finished:
            self._guard.attempt(self._answer_finished, *self._finished.popleft())
        for connection in list(self._connections):
            self._guard.attempt(self._close, connection)
        self._listener.close()
        self._selector.close()
        self.path.unlink(missing_ok=True)

    @property
    def readers(self) -> int:
        """Number of connections."""
        return len(self._connections)
