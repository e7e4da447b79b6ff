"""Codes of gate 3, intersection: every group agrees on where to resume.

Invariant: text only; ``agent.gates.intersection`` decides. Read through ``agent.gates.catalogue``.
"""

from ..model.finding import GateName, Severity
from .code import Code, vllm
from .limits import MIN_DECISIONS, MIN_PAGES, STRANDED_RATIO

_G = GateName.INTERSECTION
_E, _W = Severity.ERROR, Severity.WARNING

INTERSECTION_CODES = (
    Code(
        code="KV301",
        gate=_G,
        severity=_W,
        title="window hole",
        sentence="group {group}: {count} [decision|decisions] lost {lost} tokens to a hole in the window, last request "
        "{request} at tokens {from_tokens}-{to_tokens}",
        cause="A page of a sliding window was evicted while the full history stayed; no boundary whose window reaches "
        "into the hole can be resumed.",
        confirm="`kvctl explain` on the decision shows the waterfall; `kvctl inspect prefix SELECTOR` lists the "
        "tokens that are missing.",
        remedy="More pages for the window group, or a denser retention; the rest of the prefix is stranded until "
        "it is recomputed.",
        reports=(vllm(57610), vllm(54661)),
    ),
    Code(
        code="KV302",
        gate=_G,
        severity=_W,
        title="tail missing or not joined",
        sentence="group {group}: {count} [decision|decisions] lost {lost} tokens because the tail is missing, last "
        "request {request} at tokens {from_tokens}-{to_tokens}",
        cause="The state of the open compression group was evicted or never moved; one missing page of it makes the "
        "whole prefix unusable.",
        confirm="`kvctl explain` on the decision shows the waterfall; `kvctl inspect prefix SELECTOR` lists the "
        "tokens that are missing.",
        remedy="More pages for the state groups, or a denser retention.",
    ),
    Code(
        code="KV303",
        gate=_G,
        severity=_E,
        title="indexer covers other tokens than the compressed state",
        sentence="the indexer covers {value} tokens, the compressed state {expected}: {where}",
        cause="Indexer keys and compressed entries are stored, moved or evicted separately. With fewer keys, wrong "
        "tokens are selected, and quality sinks without an error. An engine that reuses no more than the keys cover "
        "loses a hit and nothing else: a warning.",
        confirm="`kvctl inspect prefixes` shows both states of a cached prefix side by side. A record of another tier "
        "is not in it: what each of its states covers is in the finding.",
        remedy="Take the prefix out of the cache and out of the tier, so that both are computed anew; check that the "
        "tier moves both together.",
    ),
    Code(
        code="KV304",
        gate=_G,
        severity=_W,
        title="checkpoint missing at the boundary",
        sentence="group {group}: {count} [decision|decisions] lost {lost} tokens because no checkpoint ends at the "
        "boundary, last request {request} at {to_tokens}",
        cause="A recurrent state is kept at some boundaries only, and cannot be rolled back to another one.",
        confirm="`kvctl explain` on the decision shows how far the group itself can resume: its last checkpoint.",
        remedy="A denser retention or a smaller interval between checkpoints.",
        reports=(vllm(45238),),
    ),
    Code(
        code="KV305",
        gate=_G,
        severity=_E,
        title="engine reuses more than every group can resume",
        sentence="the engine reuses {engine} tokens of request {request}, every group together can resume {usable} "
        "only ({count} of {checked:,} look-ups)",
        cause="The engine accepted a boundary at which a group lacks pages. What it reads there belongs to somebody "
        "else.",
        confirm="`kvctl explain` on the decision shows what was reused, what the rules allow, and what each group can "
        "resume.",
        remedy="Do not trust the answers to these requests; take the prefix out, and report it to the engine's "
        "developers with a saved snapshot.",
        reports=(vllm(44243),),
        essential=True,
    ),
    Code(
        code="KV306",
        gate=_G,
        severity=_W,
        title="engine reuses less than possible",
        sentence="the engine reuses {engine} tokens of request {request}, {usable} were possible ({count} of "
        "{checked:,} look-ups)",
        cause="The engine's search for a common boundary stops early.",
        confirm="`kvctl explain` on the decision shows that every group holds its pages at the larger boundary.",
        remedy="Nothing is wrong with the output; report it to the engine's developers as a lost hit.",
    ),
    Code(
        code="KV307",
        gate=_G,
        severity=_E,
        title="a group raised the common prefix",
        sentence="group {group} holds {value} tokens only, but the engine reuses {engine}: group {raised} raised the "
        "common prefix",
        cause="The common prefix of all groups may only fall while it is searched; here one group's longer hit was "
        "taken for all.",
        confirm="`kvctl explain` on the decision shows the group's own hit below what was reused.",
        remedy="As for KV305: do not trust the answers, take the prefix out, and report it with a saved snapshot.",
    ),
    Code(
        code="KV308",
        gate=_G,
        severity=_W,
        title="registered, not ready",
        sentence="{count} [prefix is|prefixes are] registered but not ready, first {name}",
        cause="An index lists a prefix whose transfer has not been acknowledged, or whose page has not been computed "
        "yet.",
        confirm="The entry turns ready after a moment; if it does not, the acknowledgement was lost.",
        remedy="Wait. Entries that stay are to be removed from the tier's index.",
    ),
    Code(
        code="KV309",
        gate=_G,
        severity=_W,
        title="a group contributes 0 to every prefix",
        sentence="group {group} answered 0 in all of the last {count} decisions where another group had a hit: no "
        "prefix can be reused",
        cause="A group never registers its pages, or under another key: one vetoes all. Looked for once "
        f"{MIN_DECISIONS} decisions found anything cached.",
        confirm="`kvctl inspect groups` shows that the group limits every decision; `kvctl explain` on one of them "
        "shows 0 for it, and the waterfall.",
        remedy="Look at the group's retention and at whether it may be cached at all; the hit rate is 0 until then.",
        reports=(vllm(45238), "https://github.com/vllm-project/vllm-ascend/pull/10009"),
    ),
    Code(
        code="KV310",
        gate=_G,
        severity=_W,
        title="stranded share above threshold",
        sentence="{share}% of {checked:,} cached full-history pages are stranded: no usable hit goes through them",
        cause="Full history is kept for longer than the window, tail or checkpoint that resuming needs. Found where "
        f"more than {STRANDED_RATIO:.0%} of the full-history pages are stranded, once {MIN_PAGES} of them are cached.",
        confirm="`kvctl inspect prefixes` shows prefixes with full history and no resumable boundary.",
        remedy="A denser retention makes them usable (`kvctl inspect groups` says what is in force); a smaller pool "
        "share for full history frees the memory.",
        reports=(vllm(57610), vllm(54661)),
    ),
    Code(
        code="KV311",
        gate=_G,
        severity=_W,
        title="tier parts incomplete",
        sentence="{name} in tier {tier} is incomplete: {what}; usable up to {value} tokens",
        cause="Parts of one prefix (states, ranks) are stored separately, and some are missing.",
        confirm="The finding names the part that is short; in a folder, count the files of each part.",
        remedy="Nothing if the engine clamps to the common part; otherwise remove the entry.",
    ),
    Code(
        code="KV312",
        gate=_G,
        severity=_E,
        title="external tail on top of a local prefix of a recurrent group",
        sentence="{count} [decision|decisions] joined {external} external tokens to a local prefix although group "
        "{group} is recurrent, last request {request}",
        cause="A recurrent state is the whole history: a local one and a tail from elsewhere do not add up.",
        confirm="The decision shows local and external tokens greater than 0.",
        remedy="Load the whole prefix from one place; let the connector answer for the whole prefix only.",
        reports=(vllm(42554),),
    ),
)
