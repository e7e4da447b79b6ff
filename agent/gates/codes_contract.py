"""Codes of gate 2, operator contract: layout, precision, page size and weights are what kernel and cache agree on.

Invariant: text only; ``agent.gates.contract`` decides. Read through ``agent.gates.catalogue``.
"""

from ..model.finding import GateName, Severity
from .code import Code, vllm
from .limits import MIN_PROMPTS

_G = GateName.CONTRACT
_E, _W = Severity.ERROR, Severity.WARNING

CONTRACT_CODES = (
    Code(
        code="KV201",
        gate=_G,
        severity=_E,
        title="weights changed, cache not reset",
        sentence="{count} cached [page was|pages were] computed with older weights ({cause}), first page {page}",
        cause="Weights were updated, reloaded or put back after a sleep, or an adapter was replaced under the same "
        "name; engines leave the decision to reset the prefix cache to the operator.",
        confirm="`kvctl fingerprint show` names the change; the stamps of the pages are older than it. After a change "
        "of one LoRA adapter only its own pages count, or all older ones where nobody knows whose they are: the agent "
        "came when the cache was filled already, or the adapter has more than 4,096 pages.",
        remedy="Remove exactly the stale pages.",
        command="kvctl invalidate stale",
        reports=(vllm(46125), vllm(42125), vllm(9744), "https://github.com/InternLM/lmdeploy/issues/4917"),
        essential=True,
    ),
    Code(
        code="KV202",
        gate=_G,
        severity=_E,
        title="contract differs from the pinned one",
        sentence="{count} [field of the contract differs|fields of the contract differ] from the pinned one, "
        "first {field}: {pinned} is now {value}",
        cause="The engine was started or updated with another layout, precision, geometry or backend than the one "
        "that was agreed.",
        confirm="`kvctl fingerprint check` lists the fields.",
        remedy="If the change was meant, pin again; otherwise start the engine as pinned. Tiers filled under the old "
        "contract must not be read.",
        command="kvctl fingerprint pin",
    ),
    Code(
        code="KV203",
        gate=_G,
        severity=_E,
        title="tensor dtype, shape or strides differ from the group's spec",
        sentence="{count} [tensor differs from its|tensors differ from their] group's spec, first {layer} on rank "
        "{rank}: {what} is {value}, spec says {expected}",
        cause="Worker and scheduler were configured differently, or a backend changed the layout after the pages "
        "were planned.",
        confirm="`kvctl inspect groups -o json` shows the spec, the worker's tensor is in the finding.",
        remedy="Do not serve with it: pages are read with other strides than they were written.",
        essential=True,
    ),
    Code(
        code="KV204",
        gate=_G,
        severity=_E,
        title="block size of the kernel does not divide the page",
        sentence="group {group}: the kernel works on {kernel} tokens, a page holds {value}",
        cause="The attention backend splits pages into its own blocks; a page that is no multiple of them is read "
        "across its end.",
        confirm="Compare block size and kernel block in `kvctl fingerprint show`.",
        remedy="Choose a block size that is a multiple of the kernel's.",
    ),
    Code(
        code="KV205",
        gate=_G,
        severity=_W,
        title="required state has no pool in a tier",
        sentence="tier {tier} has no pool for state {state}, which resuming needs",
        cause="The tier was built for some of the groups only; what it holds can then never be resumed from.",
        confirm="`kvctl inspect groups` shows which group holds the state; the tier's configuration leaves that group "
        "out.",
        remedy="Let the tier hold the state too, or accept that its prefixes are recomputed.",
    ),
    Code(
        code="KV206",
        gate=_G,
        severity=_E,
        title="tier entry carries another fingerprint, or none",
        sentence="tier {tier}{folder}: {count} of {checked:,} entries [carries|carry] another fingerprint than this "
        "engine, or none; first {name}: {foreign}, this engine: {own}",
        cause="The folder or store was filled by an engine with another configuration or other weights, and its key "
        "does not contain them.",
        confirm="The finding names both fingerprints, and the tier's folder where it is known.",
        remedy="Give the engine another folder, or empty this one, before the first request.",
        reports=(vllm(49261), vllm(55904)),
    ),
    Code(
        code="KV207",
        gate=_G,
        severity=_E,
        title="key does not separate LoRA, salt or image",
        sentence="the same tokens get one key for {pair}: each can be given what the other cached",
        cause="The key is built without a field that distinguishes the two, or two kinds of field can be mistaken "
        "for each other.",
        confirm="The probe hashes two synthetic requests in the engine; both keys are equal.",
        remedy="Let no requests that must be kept apart in this way share the engine, and report it to its developers "
        "as a security fault.",
    ),
    Code(
        code="KV208",
        gate=_G,
        severity=_E,
        title="layout id differs though sizes are equal",
        sentence="{layer}: a page has {value} bytes on the device and in the host tier, but another layout in each: "
        "{device} on the device, {host} in the host tier",
        cause="Axes or the arrangement inside a row differ. Nothing notices, because sizes match.",
        confirm="Compare the layout ids in `kvctl fingerprint show` and in the tier.",
        remedy="Start the engine with one layout on both sides, and empty the tier: what it holds would be read "
        "wrongly.",
        reports=(vllm(55904),),
    ),
    Code(
        code="KV209",
        gate=_G,
        severity=_W,
        title="hit granularity above the usual prompt",
        sentence="hits come in units of {value} tokens, but half of the last {checked:,} prompts have at most "
        "{median}: such prompts can never hit",
        cause="A hit must be a multiple of every group's block: the least common multiple of the block sizes. Found "
        f"where half of the prompts or more are no longer than that, once {MIN_PROMPTS} decisions were made.",
        confirm="`kvctl decisions` shows below_granularity for short prompts.",
        remedy="Use smaller or equal block sizes, or partial hits where the engine has them.",
        reports=(vllm(45702), "https://github.com/vllm-project/vllm-ascend/pull/11314"),
    ),
    Code(
        code="KV210",
        gate=_G,
        severity=_E,
        title="number of registered tensors differs from layers and states",
        sentence="rank {rank}: no tensor is registered for {count} of {checked:,} layers, first {layer}",
        cause="A layer was left out when tensors were registered with the runner or a connector; its state is never "
        "moved or checked.",
        confirm="`kvctl inspect groups -o json` lists the layers; the finding names the first that the worker lacks.",
        remedy="Do not use tiers or transfers with this configuration.",
    ),
    Code(
        code="KV211",
        gate=_G,
        severity=_W,
        title="sparse group may not be rewound but a draft needs it",
        sentence="group {group} cannot be rewound, but the engine drafts tokens",
        cause="Rejected draft tokens must be taken back; a compressed or sparse state that has folded them in cannot.",
        confirm="The engine says that the group cannot be rewound.",
        remedy="Switch speculative decoding off for this model.",
    ),
)
