"""Caches in many states on vLLM's own manager: filled by requests, or planted page by page to be harder than traffic.

Invariant: every page is registered through vLLM's own pool; only ``tests/engine`` imports this. All randomness comes
from the ``Random`` handed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.request import Request

from tests.support.vllm_groups import Setup

Key = tuple[int, bytes]


def keys_of(manager: KVCacheManager) -> frozenset[Key]:
    """Every (group, first 16 bytes of the hash) that the pool holds now."""
    table = manager.block_pool.cached_block_hash_to_block._cache
    return frozenset((int.from_bytes(key[-4:], "big"), bytes(key[:16])) for key in table)


class KeySet:
    """A set of keys as a page table."""

    def __init__(self, held: frozenset[Key]) -> None:
        self.held = held

    def has(self, group: int, key: bytes, /) -> bool:
        """Look the pair up."""
        return (group, key) in self.held


def drop(manager: KVCacheManager, group: int, digest: bytes) -> bool:
    """Evict every page that carries this hash in this group, as vLLM would; False if there is none."""
    entry: Any = manager.block_pool.cached_block_hash_to_block._cache.get(make_block_hash_with_group_id(digest, group))
    if entry is None:
        return False
    ids = set(entry) if isinstance(entry, dict) else {entry.block_id}
    manager.evict_blocks(ids)
    return True


@dataclass(slots=True)
class World:
    """One manager, and the chains of hashes that look-ups are drawn from."""

    setup: Setup
    random: Random
    manager: KVCacheManager = field(init=False)
    chains: list[Sequence[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = self.setup.manager()

    def lookup(self) -> tuple[list[bytes], int]:
        """Draw a request: a prefix of something known, cut anywhere, sometimes going on with something new.

        Returns:
            Its full hashes and its limit (tokens - 1).
        """
        random, unit = self.random, self.setup.unit
        known = self.chains[random.randrange(len(self.chains))]
        shared = len(known) if random.random() < 0.4 else random.randint(0, len(known))
        if random.random() < 0.5:
            shared = min(len(known), -(-shared * unit // self.setup.alignment) * self.setup.alignment // unit)
        chain = list(known[:shared])
        if random.random() < 0.5:
            chain += [random.randbytes(32) for _ in range(random.randint(1, 2 + self.setup.alignment // unit))]
        return chain, max(1, len(chain) * unit + random.randrange(unit)) - 1


def random_evictions(world: World, count: int) -> None:
    """Evict pages where it hurts: mostly in the last blocks of a chain, mostly one group at a time."""
    random, manager, unit = world.random, world.manager, world.setup.unit
    for _ in range(count):
        chain = world.chains[random.randrange(len(world.chains))]
        group = culprit(world)
        step, whole = world.setup.groups[group].block_size // unit, _alignment(world) // unit
        boundaries = len(chain) // whole
        if random.random() < 0.7 and boundaries:
            # One of the last blocks before one of the last boundaries that can be hit.
            boundary = max(1, boundaries - int(random.expovariate(0.7))) * whole
            number = boundary // step - int(random.expovariate(0.8))
        else:
            number = random.randint(1, max(1, len(chain) // step))
        if 0 < number * step <= len(chain):
            drop(manager, group, chain[number * step - 1])


def culprit(world: World) -> int:
    """Pick a group to spoil; kinds that few configurations have come first, so that each of them limits often."""
    rare = [1 + 4 * (isinstance(spec, ChunkedLocalAttentionSpec) or spec.block_size == world.setup.unit)
            for spec in world.setup.groups]  # fmt: skip
    return world.random.choices(range(len(rare)), rare)[0]


# --- planted -------------------------------------------------------------------------------------------------------


def plant(world: World, chains: int = 2) -> None:
    """Register pages so that the groups disagree: prefixes of different lengths, tails at some boundaries, holes."""
    random, setup = world.random, world.setup
    for _ in range(chains):
        length = random.randint(1, max(1, setup.longest // setup.unit))
        if world.chains and random.random() < 0.6:
            other = world.chains[random.randrange(len(world.chains))]
            start = list(other[: random.randrange(len(other) + 1)])
        else:
            start = []
        chain = start + [random.randbytes(32) for _ in range(max(1, length - len(start)))]
        world.chains.append(chain)
        _plant_chain(world, chain)


def _plant_chain(world: World, chain: Sequence[bytes]) -> None:
    setup, random = world.setup, world.random
    tokens = len(chain) * setup.unit
    alignment = _alignment(world)
    boundaries = [random.randint(0, tokens) // alignment * alignment for _ in range(random.randint(1, 4))]
    boundaries += [tokens // alignment * alignment] * (random.random() < 0.5)
    if random.random() < 0.4:
        boundaries = list(range(alignment, tokens + 1, alignment))
    spoilt = culprit(world) if random.random() < 0.5 else None
    for group, spec in enumerate(setup.groups):
        if spoilt in {None, group}:
            held = _pattern(world, group, spec, tokens, boundaries)
        else:
            held = (
                set(range(spec.block_size, tokens + 1, spec.block_size))
                if getattr(spec, "prefix_cacheable", True)
                else set()
            )
        if random.random() < 0.35 and held and spoilt in {None, group}:
            held.discard(random.choice(sorted(held)[-6:]))
        plant_keys(world.manager, group, [(end, chain[end // setup.unit - 1]) for end in sorted(held)])


def _alignment(world: World) -> int:
    return int(getattr(world.manager.coordinator, "_cache_hit_alignment_tokens", world.setup.alignment))


def _pattern(world: World, group: int, spec: Any, tokens: int, boundaries: list[int]) -> set[int]:
    """Boundaries of the pages that one group keeps."""
    random, block = world.random, spec.block_size
    fine = world.manager.coordinator.enable_partial_hash_hits and block > world.setup.unit
    if not getattr(spec, "prefix_cacheable", True):
        return set()
    if isinstance(spec, FullAttentionSpec):
        top = tokens if random.random() < 0.6 else random.randint(0, tokens)
        held = set(range(block, top + 1, block))
        if fine:
            held |= {random.randint(0, tokens // world.setup.unit) * world.setup.unit for _ in range(3)} - {0}
            held |= {end for end in boundaries if end and random.random() < 0.6}
        return held
    if isinstance(spec, MambaSpec):
        return {end for end in boundaries if end and (fine or end % block == 0) and random.random() < 0.8}
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return {end for end in range(block, tokens + 1, block) if random.random() < 0.85}
    assert isinstance(spec, SlidingWindowSpec)
    return _window_pattern(world, group, spec, tokens, boundaries)


def _window_pattern(world: World, group: int, spec: Any, tokens: int, boundaries: list[int]) -> set[int]:
    random, block = world.random, spec.block_size
    if random.random() < 0.3:
        return {end for end in range(block, tokens + 1, block) if random.random() < 0.93}
    reach = spec.sliding_window - 1 + block
    extra = block * (group in world.manager.coordinator.eagle_group_ids)
    held: set[int] = set()
    for boundary in boundaries:
        if random.random() < 0.85:
            start = max(0, boundary - reach) // block * block + block
            held |= set(range(start, min(tokens, boundary + extra) + 1, block))
    return held


def plant_keys(manager: KVCacheManager, group: int, keys: Sequence[tuple[int, bytes]]) -> None:
    """Register pages under these (boundary, hash) pairs, each a page of its own, and free them."""
    pool = manager.block_pool
    present = pool.cached_block_hash_to_block._cache
    new = [(end, key) for end, digest in keys if (key := make_block_hash_with_group_id(digest, group)) not in present]
    blocks = pool.get_new_blocks(min(len(new), pool.get_num_free_blocks()))
    for block, (end, key) in zip(blocks, new, strict=False):
        pool._insert_block_hash(key, block, num_tokens=end)
    pool.free_blocks(blocks)


# --- traffic -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Traffic:
    """Requests that share prefixes, under salts and adapters, prefilled in chunks and decoded a little."""

    world: World
    documents: list[list[int]] = field(init=False)
    live: list[Request] = field(default_factory=list)
    hasher: Any = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        random, setup = self.world.random, self.world.setup
        self.documents = [[random.randrange(30000) for _ in range(setup.longest)] for _ in range(3)]
        self.hasher = get_request_block_hasher(setup.unit, sha256)

    def request(self, tokens: list[int], salt: str | None = None, lora: str | None = None) -> Request:
        """Make a request of vLLM's own class."""
        self.count += 1
        adapter = None if lora is None else LoRARequest(lora_name=lora, lora_int_id=1 + len(lora), lora_path=f"/{lora}")
        return Request(
            f"r{self.count}", tokens, SamplingParams(max_tokens=64), None,
            block_hasher=self.hasher, cache_salt=salt, lora_request=adapter,
        )  # fmt: skip

    def draw(self) -> Request:
        """Draw a request: part of a document, perhaps going on with its own words."""
        random = self.world.random
        document = random.choice(self.documents)
        shared = random.randint(1, len(document))
        tokens = document[:shared] + [random.randrange(30000) for _ in range(random.choice([0, 1, 7, 40]))]
        identity = random.random()
        salt = "tenant" if identity < 0.1 else None
        return self.request(tokens, salt, "adapter" if identity > 0.9 else None)

    def run(self, request: Request) -> int:
        """Admit, prefill, decode a few tokens; keep it live for a while. Returns the engine's hit in tokens."""
        random, manager = self.world.random, self.world.manager
        self.world.chains.append(request.block_hashes)
        manager.new_step_starts()
        blocks, hit, request.shared_prefix_boundary = manager.get_computed_blocks(request)
        position, first = hit, True
        while position < request.num_tokens:
            size = self._chunk(request, position)
            adopted = (hit, blocks) if first else (0, None)
            if manager.allocate_slots(request, size, *adopted) is None:
                break
            first, position = False, position + size
            request.num_computed_tokens = position
            self._settle()
        else:
            self._decode(request, random.choice([0, 0, 3, 20]))
        self.live.append(request)
        while len(self.live) > random.randint(0, 3):
            manager.free(self.live.pop(0))
        return int(hit)

    def _decode(self, request: Request, count: int) -> None:
        for _ in range(count):
            request.append_output_token_ids(self.world.random.randrange(30000))
            if self.world.manager.allocate_slots(request, 1) is None:
                return
            request.num_computed_tokens = request.num_tokens
            self._settle()

    def _chunk(self, request: Request, position: int) -> int:
        """Size of the next prefill chunk; with recurrent groups it ends where a state is kept, as vLLM schedules."""
        setup, random = self.world.setup, self.world.random
        rest = int(request.num_tokens) - position
        size = min(rest, random.choice([rest, rest, 3 * setup.alignment, setup.alignment]))
        recurrent = [spec.block_size for spec in setup.groups if isinstance(spec, MambaSpec)]
        if not recurrent:
            return max(1, size)
        block = max(recurrent)
        stops = [(request.num_prompt_tokens - 1) // setup.unit * setup.unit, request.shared_prefix_boundary]
        stops += [(position // block + 1) * block, (request.num_tokens - 1) // block * block]
        ends = [int(stop) for stop in stops if position < stop < position + size]
        return (min(ends) if ends else position + size) - position

    def _settle(self) -> None:
        """End the step: copies of partial pages are done and their pages released."""
        _, retained = self.world.manager.take_kv_cache_block_copies()
        if retained:
            self.world.manager.block_pool.free_blocks(retained)
        self.world.manager.new_step_starts()
