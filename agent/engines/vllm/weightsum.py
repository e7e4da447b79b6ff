"""Digests of the weights that really are in a vLLM worker's memory, a slice at a call.

Invariant: a tensor without elements or without readable bytes is ``unreadable`` and never hashed; the work of one
call is bounded; nothing is kept between calls. Never called while the engine sleeps: the memory may be unmapped then.
Runs in the worker, called by name through the engine's collective call; does not raise.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

SAMPLE: Final = 1024
"""Elements of a tensor that the sample reads, evenly spread, first and last included."""
SLICE_TENSORS: Final = 64
"""Tensors of one call that samples."""
PIECE_BYTES: Final = 16 << 20
"""Bytes that are hashed at once when all are read; part of the digest's definition."""
SLICE_BYTES: Final = 64 << 20
"""Bytes after which one call that reads all of them stops."""
DIGEST_BYTES: Final = 16

CAUGHT: Final = (AttributeError, TypeError, ValueError, RuntimeError, LookupError, AssertionError, NotImplementedError)


def weights_digest(
    worker: Any, full: bool = False, cursors: Mapping[int, Sequence[int] | None] | None = None
) -> dict[str, Any]:
    """Read one slice of the weights.

    Args:
        worker: The worker.
        full: Read every byte instead of a sample.
        cursors: Where each rank goes on: number of the tensor in order of names, and piece of it; None: it is done.

    Returns:
        ``{"rank", "parts": [[name, piece, hex]], "unreadable": {name: why}, "bytes", "tensors", "next": [tensor,
        piece] or None, "loras": [ids], "error"}``. Tensors of adapters have names ``lora.ID.module.a`` and come last.
    """
    rank = int(getattr(worker, "rank", 0))
    empty = {"rank": rank, "parts": [], "unreadable": {}, "bytes": 0, "tensors": 0, "next": None, "loras": []}
    try:
        adapters = _adapters(worker.model_runner)
        # Adapters come and go: the numbers of all other tensors stay as they are.
        named = sorted(_tensors(worker.model_runner)) + sorted(_lora_tensors(adapters))
    except CAUGHT as error:
        return empty | {"error": f"{type(error).__name__}: {error}"[:300]}
    parts: list[list[Any]] = []
    unreadable: dict[str, str] = {}
    read, done = 0, 0
    place, at = (cursors or {}).get(rank, (0, 0)) or (len(named), 0)
    while place < len(named) and done < SLICE_TENSORS and read < SLICE_BYTES:
        name, held = named[place][0], named[place][2]
        done += 1
        try:
            found, size, following = _read(name, held, full=full, piece=at)
            parts += found
        except CAUGHT as error:
            unreadable[name], size, following = f"{type(error).__name__}: {error}"[:200], 0, 0
        read += size
        at = following
        place += 0 if following else 1
    rest = [place, at] if place < len(named) else None
    return empty | {
        "parts": parts,
        "unreadable": unreadable,
        "bytes": read,
        "tensors": len(named),
        "next": rest,
        "loras": sorted(adapters),
        "error": None,
    }


def _adapters(runner: Any) -> dict[int, Any]:
    """Return the adapters in memory by id."""
    manager = getattr(getattr(runner, "lora_manager", None), "_adapter_manager", None)
    return {} if manager is None else {int(number): held for number, held in manager.list_adapters().items()}


def _lora_tensors(adapters: Mapping[int, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield both matrices of every module of every adapter; a packed module has several, and some may be absent."""
    number = 0
    for adapter, held in adapters.items():
        for module, weights in held.loras.items():
            for letter, matrices in (("a", weights.lora_a), ("b", weights.lora_b)):
                for place, matrix in enumerate(matrices if isinstance(matrices, list | tuple) else [matrices]):
                    number += 1
                    if matrix is not None:
                        yield f"lora.{adapter}.{module}.{letter}{place}", number, matrix


def _tensors(runner: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield every parameter and buffer by name; the number keeps tensors out of comparisons."""
    models = {"": runner.get_model() if hasattr(runner, "get_model") else runner.model}
    draft = getattr(runner, "get_draft_model", None)
    if callable(draft) and (drafting := draft()) is not None:
        models["draft."] = drafting
    number = 0
    for head, model in models.items():
        for kind in (model.named_parameters, model.named_buffers):
            for name, held in kind():
                number += 1
                yield head + name, number, held


def _read(name: str, held: Any, *, full: bool, piece: int) -> tuple[list[list[Any]], int, int]:
    """Hash a tensor, or the next pieces of it.

    Returns:
        Parts, bytes read, and the piece to go on with (0: it is done).
    """
    import torch  # noqa: PLC0415 - only where weights are

    values = held.detach()
    count = int(values.numel())
    if count == 0:
        raise ValueError("no elements: the backend packed it away")
    if values.device.type == "meta":
        raise ValueError("no memory behind it")
    # Compared bit by bit: integers of the same size, whatever the dtype and the strides.
    bits = values.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()])
    head = f"{name}|{values.dtype}|{tuple(values.shape)}".encode()
    if not full:
        places = torch.linspace(0, count - 1, min(count, SAMPLE), dtype=torch.float64).round().to(torch.int64)
        if bits.dim():
            where = torch.unravel_index(places.to(bits.device), tuple(bits.shape))
            bits = bits[where]
        return [[name, 0, _hash(head, bits)]], int(bits.numel() * bits.element_size()), 0
    rows = bits.reshape(1) if not bits.dim() else bits
    row = max(1, int(rows[0].numel()) * rows.element_size())
    height = max(1, PIECE_BYTES // row)
    parts: list[list[Any]] = []
    read, at = 0, piece
    while at * height < rows.shape[0] and read < SLICE_BYTES:
        chunk = rows[at * height : (at + 1) * height]
        parts.append([name, at, _hash(head, chunk)])
        read += int(chunk.numel()) * chunk.element_size()
        at += 1
    return parts, read, at if at * height < rows.shape[0] else 0


def _hash(head: bytes, bits: Any) -> str:
    state = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
    state.update(memoryview(bits.contiguous().cpu().numpy()).cast("B"))
    return state.hexdigest()
