"""Explanations for people: every reason, outcome and state, in cause, how to confirm, what to do.

Invariant: every member of :class:`agent.model.decision.Reason` has an entry (a test counts them); texts are ours,
nothing from an engine is woven in here. Read by ``kvctl explain``, the decision views and the dashboard.
"""

from dataclasses import dataclass

from agent.model.decision import Outcome, Reason
from agent.model.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One word explained."""

    title: str
    """A sentence that can stand behind the word: ``window_hole: the window was cached and a page of it is gone``."""
    cause: str
    confirm: str
    action: str
    commands: tuple[str, ...] = ()
    """Commands that confirm or help, ready to be typed."""


REASONS: dict[Reason, Explanation] = {
    Reason.COLD: Explanation(
        title="nobody has computed this prefix before",
        cause="No page of any group was ever registered under this prefix while kvctl watched. First prompts are cold; "
        "so is everything after a restart or a reset of the cache.",
        confirm="A second request with the same prompt should hit. If it is cold again, the prompts differ early: a "
        "timestamp, a request id or a random tool order near the beginning is the usual culprit.",
        action="Put what changes at the end of the prompt. Otherwise nothing: cold is normal for new text.",
        commands=("kvctl decisions --where reason=cold", "kvctl inspect prefixes"),
    ),
    Reason.EVICTED: Explanation(
        title="the prefix was cached and has been evicted since",
        cause="The pool was full and the engine took these pages for other requests, the longest unused first.",
        confirm="The pool is near 100% used, and the same prefix hits when it comes back quickly.",
        action="Give the pool more pages (more GPU memory for the cache, a smaller maximum length, a tier in host "
        "memory), or route requests that share a prefix to the same engine.",
        commands=("kvctl inspect overview", "kvctl inspect pages"),
    ),
    Reason.NOT_RETAINED: Explanation(
        title="the group never kept its state at this boundary",
        cause="To save pages the engine keeps the states of windows and checkpoints only at some boundaries (in "
        "vLLM: at "
        "the end of the prompt). This request shares a prefix that ends elsewhere: the full history is there, the "
        "window "
        "at that point never was. Nothing was lost, it was never kept; more memory does not help.",
        confirm="The same prompt repeated as a whole is fully reused; siblings that branch off earlier are not.",
        action="Make retention denser: in vLLM --prefix-cache-retention-interval N keeps one window every N tokens, "
        "None all; a smaller N is hit more finely and takes more pages. `kvctl inspect groups` says what is in force, "
        "and of what N has to be a multiple.",
        commands=("kvctl decisions --where reason=not_retained", "kvctl inspect groups"),
    ),
    Reason.WINDOW_HOLE: Explanation(
        title="a page of the sliding window was cached here and is gone",
        cause="The engine evicts pages one by one. A page of a sliding window went while the full history stayed, and "
        "nothing that ends inside that window can be resumed any more.",
        confirm="The limiting group is a window (swa); `kvctl inspect prefixes` shows the full history ready and the "
        "window partial. Pages beyond the hole are stranded.",
        action="Give the pool more pages, or lower the load that evicts. The prefix heals when the next request "
        "computes "
        "it again.",
        commands=("kvctl decisions --where reason=window_hole", "kvctl inspect prefixes", "kvctl explain KV301"),
    ),
    Reason.TAIL_MISSING: Explanation(
        title="the tail that joins the compressed history to the next token is gone",
        cause="Compressed attention needs the tokens that are not compressed yet, and the compressor's own state. "
        "They are "
        "few and small, but one missing page makes the whole prefix unusable.",
        confirm="The limiting state is tail, and the compressed state of the same prefix is ready.",
        action="Give the pool more pages or make retention denser, so that tails live as long as what they belong to.",
        commands=("kvctl decisions --where reason=tail_missing", "kvctl explain KV302"),
    ),
    Reason.CHECKPOINT_MISSING: Explanation(
        title="no checkpoint of the recurrent state stands at this boundary",
        cause="A recurrent layer (Mamba, gated delta net) can resume only where its state was saved whole. It was "
        "saved "
        "elsewhere, or evicted here.",
        confirm="The limiting group is recurrent; its own hits are fewer and at other boundaries than those of the "
        "rest.",
        action="Save checkpoints more often, or let prompts branch where checkpoints stand (at the end of a shared "
        "part).",
        commands=("kvctl decisions --where reason=checkpoint_missing", "kvctl explain KV304"),
    ),
    Reason.INDEXER_UNSYNCED: Explanation(
        title="the sparse indexer covers fewer tokens than the history it selects from",
        cause="Keys of the indexer and the compressed history were cached or moved apart. Resuming there would "
        "select the "
        "wrong tokens: no error, quietly worse answers.",
        confirm="`kvctl inspect prefixes` shows compressed ready and indexer partial.",
        action="Take the prefix out so that it is computed anew, and check that the tier moves both together.",
        commands=("kvctl inspect prefixes", "kvctl explain KV303"),
    ),
    Reason.INVALIDATED: Explanation(
        title="somebody took this prefix out of the cache on purpose",
        cause="kvctl invalidate, or a reset of the cache through the engine.",
        confirm="The audit log names who, when and what.",
        action="Nothing: the next request computes it anew.",
    ),
    Reason.BELOW_GRANULARITY: Explanation(
        title="the shared part is shorter than one unit that can be hit",
        cause="Hits come in whole units: the least common multiple of the groups' page sizes. A shorter prompt can "
        "never "
        "hit, however often it is repeated.",
        confirm="`kvctl inspect groups` prints the unit; compare it with your prompts.",
        action="Choose page sizes with a smaller common multiple, if the engine lets you, or share longer prefixes.",
        commands=("kvctl inspect groups", "kvctl explain KV209"),
    ),
    Reason.NOT_READY: Explanation(
        title="the prefix was on its way from another tier, or not computed yet, when it was looked up",
        cause="At the look-up a transfer from host memory, disk or a remote store was running, or the request that "
        "computes the prefix had not finished its step.",
        confirm="`other tiers` in the decision says what arrived. Where nothing did, the status is in transit (⇄), "
        "and KV308 names the transfer.",
        action="Nothing if it settles. If it stays, look at the tier.",
        commands=("kvctl decisions --where outcome=prefetching", "kvctl explain KV308"),
    ),
    Reason.FINGERPRINT: Explanation(
        title="the cached pages were computed under other weights or another layout",
        cause="The fingerprint of the engine changed and the pages still carry the old one.",
        confirm="`kvctl inspect prefixes` shows the prefix as stale (✗).",
        action="Take the stale pages out.",
        commands=("kvctl explain KV201",),
    ),
    Reason.IDENTITY: Explanation(
        title="the same tokens are cached under another salt, LoRA adapter or image",
        cause="Salt, adapter and image are part of a prefix's identity, so that tenants cannot see each other's cache.",
        confirm="Send the request with the same salt and adapter as the one that cached it.",
        action="Nothing if tenants should be apart. Otherwise use one salt for what may be shared.",
    ),
    Reason.SKIPPED: Explanation(
        title="the request itself asked not to read the cache",
        cause="Some requests need every token computed, for example when they ask for log-probabilities of the prompt.",
        confirm="The decision says skipped.",
        action="Leave the option out of the request if reuse matters more.",
    ),
    Reason.ALIGNMENT: Explanation(
        title="lost by design: hits end at whole units",
        cause="The shared part ends inside a unit; the remainder is computed again.",
        confirm="The loss is smaller than the unit that `kvctl inspect groups` prints; where hits may end inside "
        "pages, smaller than a page of the group that is named.",
        action="Nothing. It is no degradation.",
        commands=("kvctl inspect groups",),
    ),
    Reason.LAST_TOKEN: Explanation(
        title="lost by design: the last token is always computed",
        cause="An engine needs the output of the last token of the prompt, so it never reuses all of it.",
        confirm="The prompt is a whole number of units long and was cached as a whole.",
        action="Nothing. It is no degradation.",
    ),
    Reason.DRAFT_MARGIN: Explanation(
        title="lost by design: a speculative group asks for a margin",
        cause="Groups of a draft model are looked up one block further than the boundary, and the block is dropped "
        "again.",
        confirm="The engine runs speculative decoding, and the loss is one block of the draft group.",
        action="Nothing. It is no degradation.",
    ),
    Reason.UNKNOWN: Explanation(
        title="kvctl could not tell",
        cause="The evidence is missing: no page table at that look-up, a group of a kind that this version does not "
        "know, "
        "or a prefix that left the cache before kvctl came or longer ago than it remembers.",
        confirm="`kvctl inspect overview` lists what is switched off and why.",
        action="Keep a reader joined (the dashboard, or kvctl decisions -f), so that decisions come with their table.",
        commands=("kvctl inspect overview", "kvctl doctor"),
    ),
}
"""One entry for each reason."""

OUTCOMES: dict[Outcome, str] = {
    Outcome.REUSE: "all that could be reused was",
    Outcome.PARTIAL: "some state was missing: a shorter prefix was reused",
    Outcome.PREFETCHING: "the request waited for another tier: what arrived in time stands under other tiers",
    Outcome.RECOMPUTE: "nothing was reused: the whole prompt was computed",
    Outcome.UNKNOWN: "kvctl could not tell",
}
"""One sentence for each outcome."""

STATES: dict[State, tuple[str, str]] = {
    State.COMPRESSED: ("full-history KV, compressed or not; a recurrent checkpoint", "about the whole prefix"),
    State.TAIL: ("tokens not yet compressed, state of the compressor", "small, but one missing page stops the prefix"),
    State.SWA: ("sliding-window KV, chunked-local attention", "the wrong stretch of history would be read"),
    State.INDEXER: ("keys and statistics of a sparse indexer", "the wrong tokens are selected, quality sinks quietly"),
    State.ON_DISK: ("prefixes in host memory, on disk or in a remote store", "a stall, an error, or garbage"),
    State.UNKNOWN: ("a kind of layer that this version of kvctl does not know", "unknown"),
}
"""What each state holds, and what its loss costs."""
