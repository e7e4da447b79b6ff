"""Where each code cannot be looked at, in the words that a user is shown: the reference engine and vLLM's CPU build.

Invariant: the one list of these words; live tests run both engines and hold every abstention against it, and
``docs/codes.md`` and ``kvctl explain CODE`` show it. Where a saved file lacks something it abstains in other words.
"""

from collections.abc import Mapping

_NO_TIER = "there is no other tier"
_SINGLE = "entries of the tiers are single pages: none lists its parts"
_NO_ENTRY = "no tier holds an entry"
_NO_HOST = "no worker describes the host pool of OffloadingConnector"
_NO_NVML = "no NVIDIA driver library (NVML) on this host"
_NO_EVENTS = "event streams are not read in this version"
_NO_PAGE = "no request holds a page"
_NO_UNIT = "no kernel of this engine asks for pages padded to a unit"
_UNEXPLAINED = "no decision was explained from a page table"
_UNASKED = "the engine knows no request that it could look up"
_SINCE = f"{_UNEXPLAINED} since the last check"
_NO_BIND = "no page was bound yet"

REFERENCE: Mapping[str, frozenset[str]] = {
    "KV311": frozenset({_SINGLE}),
    "KV403": frozenset({_NO_UNIT}),
    "KV407": frozenset({"copies of this host pool need no locked pages"}),
    "KV409": frozenset({_NO_NVML}),
    "KV541": frozenset({_NO_EVENTS}),
}
"""Codes that cannot be looked at on the reference engine on CPU, and what a user is told."""

VLLM: Mapping[str, frozenset[str]] = {
    "KV206": frozenset(
        {_NO_TIER, "entries of OffloadingConnector carry no fingerprint: nothing says whose bytes they are"}
    ),
    "KV208": frozenset({_NO_TIER, _NO_HOST}),
    "KV211": frozenset(
        {
            "this engine drafts nothing, so nothing is rewound",
            "no group is sparse",
            "vLLM does not say whether a draft can rewind group NAME",
        }
    ),
    "KV303": frozenset({"no group keeps indexer keys apart from the entries they select", _SINGLE}),
    "KV311": frozenset({_NO_TIER, _SINGLE}),
    "KV401": frozenset({"no kernel of this engine asks for an alignment of addresses"}),
    "KV406": frozenset({"no kernel of this engine reads rows in bulk copies"}),
    "KV407": frozenset({_NO_TIER, _NO_HOST}),
    "KV408": frozenset({_NO_TIER, "no tier lists a file and its size"}),
    "KV409": frozenset({_NO_NVML}),
    "KV501": frozenset({"vLLM pins no cached page and has no cap: what nobody holds can be taken at once"}),
    "KV511": frozenset(
        {"vLLM has no routes by state: what is missing is computed again, or loaded through the connector"}
    ),
    "KV531": frozenset({"no graph is captured on cpu"}),
    "KV541": frozenset({_NO_EVENTS}),
}
"""The same for vLLM 0.32 on CPU, in process and served, with any model and connector that was seen."""

UNTIL: Mapping[str, frozenset[str]] = {
    "KV101": frozenset({"the hash table is empty"}),
    "KV102": frozenset({"no page carries a key"}),
    "KV107": frozenset({"the free list is empty"}),
    "KV109": frozenset({_NO_PAGE}),
    "KV111": frozenset({_NO_PAGE}),
    "KV113": frozenset({_NO_BIND}),
    "KV114": frozenset({"no page carries a key"}),
    "KV115": frozenset({"no transfer is in flight"}),
    "KV116": frozenset({"no page carries a key"}),
    "KV117": frozenset({"no request holds a page that carries a key"}),
    "KV118": frozenset({"no page carries a key"}),
    "KV119": frozenset({"no page carries a key"}),
    "KV202": frozenset({"no contract was pinned (kvctl fingerprint pin)"}),
    "KV205": frozenset({_NO_TIER, "no tier says which states it has a pool for"}),
    "KV206": frozenset({_NO_ENTRY}),
    "KV209": frozenset({"fewer than 20 decisions: the usual prompt is not known"}),
    "KV301": frozenset({_UNEXPLAINED, _SINCE, "no group keeps a window"}),
    "KV302": frozenset({_UNEXPLAINED, _SINCE, "no group keeps a tail"}),
    "KV303": frozenset({_UNEXPLAINED, _SINCE, _SINGLE, _NO_ENTRY}),
    "KV304": frozenset({_UNEXPLAINED, _SINCE, "no group is recurrent"}),
    "KV305": frozenset({_UNASKED}),
    "KV306": frozenset({_UNASKED}),
    "KV307": frozenset({_UNASKED}),
    "KV308": frozenset({_UNEXPLAINED, _NO_TIER, _NO_ENTRY}),
    "KV309": frozenset({"fewer than 20 decisions with a page table found anything cached"}),
    "KV310": frozenset({"fewer than 64 pages of full history are cached"}),
    "KV311": frozenset({_NO_ENTRY}),
    "KV312": frozenset({"no decision was made yet", "no group is recurrent"}),
    "KV402": frozenset({"no kernel of this engine asks for an alignment of block strides"}),
    "KV403": frozenset({_NO_UNIT}),
    "KV405": frozenset({"no group has tensors of two layers on one rank"}),
    "KV408": frozenset({"no tier lists a file and its size"}),
    "KV502": frozenset({"no request waits"}),
    "KV503": frozenset({"the engine has no request"}),
    "KV511": frozenset({"nothing was recovered"}),
    "KV521": frozenset({"no plan was made, and no page was bound yet"}),
    "KV522": frozenset({_NO_BIND}),
    "KV531": frozenset(
        {"no graph was captured (the engine may run without)", "the addresses of captured buffers were not read"}
    ),
    "KV532": frozenset({"no batch is padded"}),
}
"""What a user is told while there is nothing that a code could look at yet, or not on this model."""

_ENGINES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "the reference engine": REFERENCE,
    "vLLM 0.32 (CPU build)": VLLM,
}


def always(code: str) -> dict[str, tuple[str, ...]]:
    """Return why a code is never looked at, by engine; nothing for an engine on which it can fail."""
    return {name: tuple(sorted(table[code])) for name, table in _ENGINES.items() if code in table}


def at_times(code: str) -> tuple[str, ...]:
    """Return what a code lacks at first, or on some models, where it can fail at all."""
    never = REFERENCE.get(code, frozenset()) | VLLM.get(code, frozenset())
    return tuple(sorted(UNTIL.get(code, frozenset()) - never))


def sentences(code: str) -> list[str]:
    """Say on which engines a code is not looked at: ``on ENGINE: reasons``, one line for all with the same reasons."""
    engines: dict[tuple[str, ...], list[str]] = {}
    for name, reasons in always(code).items():
        engines.setdefault(reasons, []).append(name)
    return [f"on {' and '.join(names)}: {'; '.join(reasons)}" for reasons, names in engines.items()]
