"""What the gates need beyond tables and decisions, read from the reference engine.

Invariant: reads attributes only, bounded in the number of tier entries; a tensor is asked for its address and shape,
its content is never touched. Called by the adapter on the engine's thread.
"""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from ...model.evidence import (
    Admission,
    BindConflict,
    Binds,
    CapturedBatch,
    CapturedBuffer,
    Contract,
    Evidence,
    Graphs,
    IdentityProbe,
    PlanRecord,
    TierEntry,
    TierReport,
    Transfer,
    Weights,
    WorkerTensor,
)
from ...model.states import GroupId, PageId, Status

OVERDUE_S = 4.0
"""Seconds after which the acknowledgement of a copy is overdue: copies take milliseconds."""

ENTRY_LIMIT = 512
"""Entries of a tier that are listed: those written last."""


def read(engine: Any, *, changes: Iterable[int]) -> Evidence:
    """Read everything.

    Args:
        engine: The engine.
        changes: Stamps from which on pages were computed with other weights.
    """
    return Evidence(
        weights=Weights(changes=tuple(changes), digest=engine.weights.digest(), complete=True),
        tensors=(*_tensors(engine), *_host_tensors(engine)),
        contract=Contract(fields=engine.contract, fingerprint=engine.fingerprint),
        transfers=tuple(
            Transfer(page=PageId(page), into=True, stamp=engine.pages.generation[page])
            for page in engine.prefetcher.holders()
        ),
        binds=_binds(engine),
        plans=_plans(engine),
        tiers=tuple(_tiers(engine)),
        admission=_admission(engine),
        graphs=_graphs(engine),
        recovery=dict(engine.recovered),
        identities=_identities(engine),
        # Entries are kept whole for every position; a checkpoint has the tokens after it folded in.
        rewindable={GroupId(spec.id): spec.name != "checkpoint" for spec in engine.pools.specs},
        missing={"devices": "the reference engine does not ask the driver"},
    )


def _tensors(engine: Any) -> Iterable[WorkerTensor]:
    pools, config = engine.pools, engine.config
    for spec in pools.specs:
        pool = pools.tensors[spec.state]
        size, storage = pool.element_size(), pool.untyped_storage()
        for part in spec.parts:
            view = pools.view(spec.name, part.layer)
            strides = (pool.stride(0), part.stride, 1)
            yield WorkerTensor(
                rank=0,
                layer=f"layers.{part.layer}.{spec.name}",
                group=GroupId(spec.id),
                dtype=str(pool.dtype),
                shape=tuple(view.shape),
                strides=tuple(view.stride()),
                address=view.data_ptr(),
                page_bytes=part.rows * part.stride * size,
                block_stride=pool.stride(0) * size,
                pages=view.shape[0],
                allocation=(storage.data_ptr(), storage.nbytes()),
                spec_dtype=f"torch.{engine.model.dtype}",
                spec_shape=(pools.pages.sizes[spec.state] + 1, part.rows, part.width),
                spec_strides=strides,
                address_alignment=config.row_alignment,
                required_alignment=config.page_alignment,
                row_bytes=part.stride * size,
                row_alignment=config.row_alignment,
                kernel_block=spec.block,
                layout=engine.contract["layout"],
            )


def _host_tensors(engine: Any) -> Iterable[WorkerTensor]:
    """Describe the host tier's pool: rows hold pages of any group, each in the layout it had on the device."""
    pool = engine.tiers.pool
    if pool is None:
        return
    size, storage = pool.element_size(), pool.untyped_storage()
    on_gpu = engine.config.device.startswith("cuda")
    for spec in engine.pools.specs:
        for part in spec.parts:
            yield WorkerTensor(
                rank=0,
                layer=f"layers.{part.layer}.{spec.name}",
                group=GroupId(spec.id),
                dtype=str(pool.dtype),
                shape=(pool.shape[0], part.rows, part.width),
                strides=(pool.stride(0), part.stride, 1),
                address=pool.data_ptr() + part.offset * size,
                page_bytes=part.rows * part.stride * size,
                block_stride=pool.stride(0) * size,
                pages=pool.shape[0],
                allocation=(storage.data_ptr(), storage.nbytes()),
                layout=engine.contract["layout"],
                host=True,
                # Copies between two places in host memory need no locked pages: there is no rule to check then.
                pinned=pool.is_pinned() if on_gpu else None,
            )


def _identities(engine: Any) -> tuple[IdentityProbe, ...]:
    """Hash the same tokens under identities that must not share a prefix."""
    from ...reference.keys import Chain, Identity  # noqa: PLC0415 - only an engine of this kind has them

    unit = engine.describe().hash_unit

    def key(**fields: str) -> bytes:
        chain = Chain(unit, Identity(**fields))
        chain.extend(range(unit))
        return bytes(chain.keys[0])

    plain = key()
    return (
        IdentityProbe(name="salt", left=plain, right=key(salt="a")),
        IdentityProbe(name="lora", left=plain, right=key(adapter="a")),
        IdentityProbe(name="lora_named_like_salt", left=key(salt="a"), right=key(adapter="a")),
    )


def _binds(engine: Any) -> Binds:
    conflicts = tuple(
        BindConflict(
            request=violation.request,
            checked=PageId(right),
            bound=PageId(page),
            stamp_checked=engine.pages.generation[right],
            stamp_bound=engine.pages.generation[page],
        )
        for violation in engine.violations
        for page, right in violation.exchanged
    )
    return Binds(compared=engine.binds, conflicts=conflicts)


def _plans(engine: Any) -> tuple[PlanRecord, ...]:
    """A bind is a plan: pages under the generations they were checked under. One noticed at use was executed."""
    noticed = {(violation.request, violation.step) for violation in engine.violations if violation.moved}
    done = (
        PlanRecord(
            id=f"bind of {bound.request} in step {bound.step}",
            planned={PageId(page): generation for page, generation in bound.checked},
            found={PageId(page): generation for page, generation in bound.found},
            executed=True,
        )
        for bound in engine.reuser.bound.copy()
        if (bound.request, bound.step) not in noticed
    )
    wrong = (
        PlanRecord(
            id=f"bind of {violation.request} in step {violation.step}",
            planned={PageId(page): checked for page, checked, _ in violation.moved},
            found={PageId(page): found for page, _, found in violation.moved},
            executed=True,
        )
        for violation in engine.violations
        if violation.moved
    )
    return (*done, *wrong)


def _tiers(engine: Any) -> Iterable[TierReport]:
    tiers, specs = engine.tiers, engine.pools.specs
    states = frozenset(spec.state for spec in specs)
    if tiers.pool is not None:
        ready = [name for name, slot in islice(reversed(tiers.host.items()), ENTRY_LIMIT) if slot.ready]
        entries = tuple(TierEntry(tier="host", name=name.file, fingerprint=engine.fingerprint) for name in ready)
        yield TierReport(name="host", states=states, entries=entries + _under_way(tiers, "host", engine.fingerprint))
    if tiers.disk is not None:
        entries = tuple(_files(tiers, engine.fingerprint))
        yield TierReport(name="disk", states=states, entries=entries, folder=str(tiers.disk.folder))


def _under_way(tiers: Any, tier: str, own: str) -> tuple[TierEntry, ...]:
    """A copy counts as registered and not acknowledged once its acknowledgement is overdue."""
    return tuple(
        TierEntry(
            tier=tier,
            name=name.file,
            status=Status.IN_TRANSIT,
            registered=seconds > OVERDUE_S,
            acknowledged=False,
            fingerprint=own,
        )
        for name, to_disk, seconds in tiers.in_transit()
        if to_disk == (tier == "disk")
    )


def _files(tiers: Any, own: str) -> Iterable[TierEntry]:
    disk = tiers.disk
    yield from _under_way(tiers, "disk", own)
    for name, carried in islice(disk.foreign.items(), ENTRY_LIMIT):
        yield TierEntry(tier="disk", name=name.file, status=Status.STALE, fingerprint=carried)
    listed = [(name, size) for name, size in islice(reversed(disk.sizes.items()), ENTRY_LIMIT) if name in disk.ready]
    for name, size in listed:
        found = _size(disk.folder / name.file)
        yield TierEntry(
            tier="disk",
            name=name.file,
            status=Status.READY if found == size else Status.MISSING,
            fingerprint=own,
            bytes=found,
            expected_bytes=size,
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _admission(engine: Any) -> Admission:
    waiting = engine.scheduler.waiting
    return Admission(
        cap_ratio=engine.config.cached_share,
        pinned=sum(engine.prefetcher.reserved().values()),
        needs={request.id: engine.need_of(request) for request in waiting},
        returned={request.id: request.preemptions for request in engine.requests.values() if request.preemptions},
    )


def _graphs(engine: Any) -> Graphs:
    decode, now = engine.decode, engine.decode.addresses()
    first: dict[str, int] = dict(next(iter(decode.captures.values()), {}))
    buffers = tuple(CapturedBuffer(name=name, captured=at, now=now[name]) for name, at in first.items())
    batches = [(decode.live, decode.rows())] if decode.padded else []
    if decode.dirty is not None:
        batches.append(decode.dirty)
    return Graphs(
        buffers=buffers,
        batches=tuple(
            CapturedBatch(
                name=f"decode {len(rows)}",
                live=live,
                rows=tuple(tuple(PageId(page) for page in row) for row in rows),
            )
            for live, rows in batches
        ),
    )
