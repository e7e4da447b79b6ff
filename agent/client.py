"""One connection to a probe: greeting, requests, typed errors, and a deadline on everything.

Invariant: nothing is sent before the other side's uid and process were checked, and no call outlives its deadline. Used
by :mod:`agent.session`; not thread-safe.
"""

import os
import select
import socket
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from . import paths, wire
from .discovery import Endpoint, EndpointState
from .errors import AgentError, DeadlineError, KvctlError, ProtocolError, TargetError

GRACE_S: Final = 1.0
"""How much longer than the engine's side a call waits: the engine's own sentence is the better one."""

DYING_S: Final = 0.5
"""How long a process that closed its socket may take to be gone."""

_LIST: Final = "to list the engines of this host: kvctl ps"

_CREDENTIALS: Final = struct.Struct("3i")
_CHUNK: Final = 1 << 18


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the other side as the kernel vouches for them (pid 0: not visible from here)."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid


def connect_path(path: Path, timeout_s: float) -> socket.socket:
    """Connect to a socket file whose path may be longer than the 107 bytes that a socket address holds."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        except BaseException:
            connection.close()
            raise
        return connection
    finally:
        os.close(folder)


class Client:
    """A greeted connection.

    Args:
        endpoint: Where to connect.
        deadline_s: For connecting and greeting.

    Raises:
        TargetError: There is no live engine, or it is not the one that the socket's name says.
        DeadlineError: Nobody answered in time.
        ProtocolError: The other side speaks another language or version.
    """

    def __init__(self, endpoint: Endpoint, *, deadline_s: float = 5.0) -> None:
        self.endpoint = endpoint
        self._next_id = 0
        self._buffer = wire.FrameBuffer(wire.MAX_REPLY)
        self._descriptors: list[int] = []
        self._told: int | None = None
        """The question whose answer nobody waits for, until it comes."""
        self._complaint: KvctlError | None = None
        """What was wrong with it."""
        self._until = time.monotonic() + deadline_s
        if endpoint.state is not EndpointState.LIVE:
            left = "kvctl doctor --fix removes what it left; " if endpoint.state is EndpointState.DEAD else ""
            raise TargetError(
                f"the engine of {endpoint.path.name} cannot be used", why=endpoint.reason, next_step=left + _LIST
            )
        try:
            self._socket = connect_path(endpoint.path, deadline_s)
        except TimeoutError as error:
            raise DeadlineError(f"engine {endpoint.pid} did not accept the connection in {deadline_s:g} s") from error
        except OSError as error:
            raise self._gone("connecting", error) from error
        try:
            self._check_peer()
            self.hello = self._greet()
        except BaseException:
            self.close()
            raise

    def _check_peer(self) -> None:
        pid, uid = peer_of(self._socket)
        expected = self.endpoint
        if uid != expected.uid or pid != expected.pid or paths.start_ticks(pid) != expected.start_ticks:
            raise TargetError(
                f"another process answers for engine {expected.pid}",
                why=f"the socket is held by process {pid} of uid {uid}",
                next_step="kvctl doctor shows the runtime folders and who owns them",
            )

    def _greet(self) -> dict[str, Any]:
        self._send({"hello": {"protocol": wire.PROTOCOL, "pid": os.getpid()}}, "greeting")
        answer = self._receive("greeting")
        if "error" in answer:
            raise wire.error_from_plain(answer["error"])
        hello = answer.get("hello")
        if not isinstance(hello, dict) or hello.get("protocol") != wire.PROTOCOL:
            raise ProtocolError("the agent speaks another protocol", why=f"this side speaks version {wire.PROTOCOL}")
        return hello

    def call(self, op: str, *, deadline_s: float = 10.0, **args: Any) -> Any:
        """Ask one question and return its result.

        Raises:
            KvctlError: What the agent said, or why there is no answer.
        """
        self._until = time.monotonic() + deadline_s + GRACE_S
        self._next_id += 1
        self._send({"id": self._next_id, "op": op, "args": args, "deadline_ms": int(deadline_s * 1000)}, op)
        while True:
            answer = self._receive(op)
            # An answer to a question that was given up earlier is dropped.
            if not self._heard(answer) and answer.get("id") in {self._next_id, None}:
                break
        if answer.get("ok") is True:
            return answer.get("result")
        raise wire.error_from_plain(answer.get("error"))

    def tell(self, op: str, **args: Any) -> None:
        """Ask a question whose answer matters only if it is an error; does not wait for it.

        Only while none is :attr:`telling`, and only what the empty buffer of a socket holds.

        Raises:
            KvctlError: The engine is gone.
        """
        self._until = time.monotonic() + GRACE_S
        self._next_id += 1
        self._send({"id": self._next_id, "op": op, "args": args}, op)
        self._told = self._next_id

    @property
    def telling(self) -> bool:
        """Whether the last :meth:`tell` is not answered yet, as far as was listened."""
        return self._told is not None

    def listen(self, *, within_s: float = 0.0) -> None:
        """Look whether the last :meth:`tell` was answered; does not wait longer than that for it.

        Raises:
            KvctlError: What the agent said against it, or that it is gone.
        """
        self._hear()
        until = time.monotonic() + within_s
        while self.telling and (left := until - time.monotonic()) > 0:
            select.select([self._socket], [], [], left)
            self._hear()
        complaint, self._complaint = self._complaint, None
        if complaint is not None:
            raise complaint

    def _hear(self) -> None:
        """Take what came, as long as an answer that nobody waits for is due."""
        while self.telling:
            message = self._buffer.next()
            if message is not None:
                self._heard(message)
                continue
            try:
                self._socket.settimeout(0.0)
                data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone("listening", error) from error
            self._take(data, descriptors, "listening")

    def _heard(self, answer: dict[str, Any]) -> bool:
        """Whether an answer is that to the last :meth:`tell`; what it says against it is kept."""
        if self._told is None or answer.get("id") != self._told:
            return False
        self._told = None
        if answer.get("ok") is not True:
            self._complaint = wire.error_from_plain(answer.get("error"))
        return True

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the last answer; the caller owns it.

        Raises:
            AgentError: None came.
        """
        if not self._descriptors:
            raise AgentError("the agent sent no ring", why="its answer carried no descriptor")
        return self._descriptors.pop(0)

    def alive(self) -> bool:
        """Tell, without waiting, whether the engine still holds the connection."""
        try:
            self._hear()  # what it said last would hide that it is gone
            self._socket.settimeout(0.0)
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except (OSError, KvctlError):
            return False

    def _send(self, message: dict[str, Any], doing: str) -> None:
        try:
            self._socket.settimeout(self._left(doing))
            self._socket.sendall(wire.encode(message))
        except TimeoutError as error:
            raise self._late(doing) from error
        except (BrokenPipeError, ConnectionResetError):
            # It may have said why before it closed: the answer that is waiting is read next.
            return
        except OSError as error:
            raise self._gone(doing, error) from error

    def _receive(self, doing: str) -> dict[str, Any]:
        while (message := self._buffer.next()) is None:
            try:
                self._socket.settimeout(self._left(doing))
                data, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK, 1, socket.MSG_CMSG_CLOEXEC)
            except TimeoutError as error:
                raise self._late(doing) from error
            except OSError as error:
                raise self._gone(doing, error) from error
            self._take(data, descriptors, doing)
        return message

    def _take(self, data: bytes, descriptors: list[int], doing: str) -> None:
        self._descriptors.extend(descriptors)
        if not data:
            raise self._gone(doing, None)
        self._buffer.feed(data)

    def _left(self, doing: str) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late(doing)
        return left

    def _late(self, doing: str) -> DeadlineError:
        return DeadlineError(
            f"engine {self.endpoint.pid} did not answer `{doing}` in time",
            why="the engine's thread is busy or stopped",
            next_step="raise --timeout, or see kvctl doctor",
        )

    def _gone(self, doing: str, error: OSError | None) -> KvctlError:
        endpoint = self.endpoint
        if _ended(endpoint):
            return TargetError(
                f"engine {endpoint.pid} ended during `{doing}`",
                why="its process is gone",
                next_step=_LIST,
            )
        why = "the connection was closed" if error is None else (error.strerror or type(error).__name__).lower()
        return TargetError(
            f"the agent of engine {endpoint.pid} does not answer `{doing}`",
            why=why,
            next_step="the engine runs; kvctl doctor shows whether its agent was switched off",
        )

    def close(self) -> None:
        """Close the connection; the probe leaves the feed for it."""
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended(endpoint: Endpoint) -> bool:
    """Return whether an engine is gone, or goes now: a process that dies closes its socket first."""
    if paths.start_ticks(endpoint.pid) != endpoint.start_ticks:
        return True
    try:
        process = os.pidfd_open(endpoint.pid)
    except OSError:
        return paths.start_ticks(endpoint.pid) != endpoint.start_ticks
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(DYING_S * 1000))
    finally:
        os.close(process)
