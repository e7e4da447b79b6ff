"""Words that outputs print, each explained once: headings, statuses, routes, verdicts, and what the agent can do.

Invariant: every heading of a table, every label, every value of the model's enumerations and every capability is here,
among the reasons, outcomes and states of :mod:`inspector.explain`, or among the codes (a test collects them). Texts are
ours. Read by ``kvctl explain``.
"""

import re

from agent.model.states import Status

from .symbols import SHORT, SIGN

STATUSES: dict[Status, str] = {
    Status.READY: "every page that resuming needs of this state is there and was computed under the weights in force",
    Status.PARTIAL: "some pages that resuming needs of this state are there and some are not",
    Status.MISSING: "no page that resuming needs of this state is there",
    Status.IN_TRANSIT: "pages of this state are being copied from or to another tier right now",
    Status.STALE: "pages of this state were computed under other weights or another layout: not to be used",
    Status.UNKNOWN: "it was not read, or nobody can tell; never the same as 0 or none",
}
"""One sentence for each status of a state, as the five-state row shows it."""

WORDS: dict[str, str] = {
    # hits and losses
    "logical": "logical hit: the longest prefix of the request that was computed once and of which something is still "
    "cached. It says what could have been reused.",
    "usable": "usable hit: the longest prefix at which every required group can resume. It is what really saves work. "
    "USABLE/LOGICAL in kvctl ps is its share of logical; shares in kvctl inspect are of what was looked up. In "
    "a line of decisions with KV305 it is what the engine reused, which was more.",
    "lookup": "tokens of the prompt that the engine looked up in its cache when it admitted the request",
    "lost": "tokens that were logically there and had to be computed again, booked to the group and the reason that "
    "cost them. As a gate's verdict in the demo: only findings of this kind, no fault.",
    "reused": "tokens that the engine took from its cache",
    "recomputed": "tokens that were computed although they had been computed before",
    "stranded": "pages that are cached but cannot be part of any usable hit now. They take memory and save "
    "nothing until they are computed around or evicted. 12+40? are 12 for certain and 40 of which nobody can tell.",
    "recoverable": "tokens that another way of resuming would win beyond usable: exact, replay_exact (the "
    "last tokens of a window are computed again in every layer) or replay_approximate (once; not the same answers). "
    "`kvctl inspect prefix SELECTOR` shows them; an engine that does not offer the way still resumes at usable.",
    "limiting": "the group to which most of the loss between logical and usable is booked. LIMITS counts "
    "the decisions that a group limited, LIMITED BY names it for a prefix.",
    "own_hit": "how far one group alone could resume, whatever the others have",
    "degraded": "a decision in which less could be used than was logically there, other than by design",
    "by_design": "tokens that no cache could save: ends inside a unit, the last token, the margin of drafts",
    "waterfall": "how the common boundary of all groups sank, step by step, and which group caused each step.",
    "danger": "the engine reused more than every group can resume: these answers cannot be trusted (KV305)",
    "cached": "pages that carry a key: a later request with the same prefix can find them",
    # how a prefix could be resumed
    "exact": "a way of resuming: nothing is computed again, the mathematics needs less than the engine asks for",
    "replay_exact": "a way of resuming: the last tokens are computed again in every layer, with the same answers",
    "replay_approximate": "a way of resuming: only the last tokens of a window are computed again; answers may differ",
    "recovery": "what each recovery route of the engine won, in tokens that were not computed again. Routes that only "
    "together brought a prefix back are joined with +.",
    "map_in_place": "a recovery route: the pages were there and were taken as they were",
    "recompute_tail": "a recovery route: the tokens that are not compressed yet were computed again",
    "realign_window": "a recovery route: the last tokens of a sliding window were computed again",
    "rebuild_indexer": "a recovery route: keys of a sparse indexer were computed again from what is cached",
    "transfer": "a recovery route: the pages were copied from host memory or disk",
    "recompute_layers": "a recovery route: the layers above what is missing were reused, those below computed again",
    # what a prefix, a page and a group are
    "prefix": "the beginning of a prompt, token by token from its first; named by the hash of its last page",
    "page": "one physical block of the cache's pool, the unit of allocation (vLLM calls it block).",
    "group": "layers that share one page table and one kind of cache state. A name like swa16/w1024#0 says the state "
    "(swa), tokens a page (16), a window (w) or the tokens of one compressed entry (m), and the group's number (0).",
    "key": "hash of a page's tokens and of all before it; hash:... is its beginning. Without it nobody finds the page.",
    "state": "what kind of cache state a group keeps: compressed, tail, swa, indexer, on_disk",
    "status": "how much of a state is there (ready, partial, missing, in_transit, stale), or what a request does "
    "(running, waiting)",
    "unit": "hits come in whole units: the least common multiple of what the groups can resume at",
    "ends_at": "tokens from the beginning of the prompt to the end of this page",
    "held_by": "how many requests use the page now; 0: it is cached and can be evicted",
    "held": "pages that requests use now",
    "empty": "pages that hold nothing that can be found: free at once",
    "registered": "the engine's step in which the page got its key",
    "needs_tokens": "the stretch of the prefix of which a group needs pages to resume at its end",
    "missing_tokens": "the first stretch that a group needs and has no page of; +2: and two more",
    "shares": "tokens that a prefix has in common with the one it branches off",
    "longest": "tokens up to the furthest page that a group has cached",
    "block": "tokens in one page of the group",
    "layers": "layers of the model that share the group's page table",
    "spec": "what the engine calls this kind of group",
    "resumes": "what a group needs to go on: full, window, chunked, recurrent, or none",
    "full": "of a group: it needs every page from the beginning to resume. Of weights: every byte was read.",
    "window": "of a group: it needs the last tokens of a sliding window to resume",
    "chunked": "of a group: it needs the tokens of the chunk that it is in to resume",
    "recurrent": "of a group: it needs a checkpoint of its state at exactly this token to resume",
    "needed": "required, optional or transient: whether resuming needs the group",
    "required": "resuming needs this group",
    "optional": "a draft group: its loss lowers acceptance, not correctness",
    "transient": "rebuilt for each request: shown, never required",
    "none": "there is no such thing here: read, and found to be absent (unknown: it was not read)",
    "tier": "another place that holds prefixes: host memory, a disk, a remote store",
    "entries": "pieces that a tier holds",
    "fragment": "cached pages whose beginning is gone, or that are shorter than one hit: part of no prefix",
    "retention": "how many windows and checkpoints the engine keeps for later requests: all (dense), one every so many "
    "tokens (the retention interval), or, with interval 0, only where a prompt ends. `kvctl inspect groups` says "
    "which.",
    # decisions and requests
    "decision": "what one request could reuse when it was admitted; its id is what kvctl explain NUMBER takes",
    "outcome": "how a decision ended: reuse, partial, prefetching, recompute",
    "reason": "why tokens were not reused; each is a topic of its own",
    "reuse": "how much of what was looked up could be used. As an outcome: all that could be reused was.",
    "phase": "first: the request was admitted; resumed: it was admitted again after it was preempted",
    "first": "the first admission of a request",
    "resumed": "a request that was admitted again after it was preempted",
    "step": "one round of the engine: schedule, compute, update",
    "tiers": "tokens that came from another tier",
    "request": "one prompt with its id, a free text that the client or the server chose",
    "running": "a request that the engine computes now",
    "waiting": "a request that the engine has not admitted yet, or waits for its pages from another tier",
    "prompt": "tokens of the request's prompt",
    "tokens": "tokens of a request so far, prompt and answer; of a prefix: its length",
    "computed": "tokens of a request whose state is in the cache",
    "preempted": "how often the engine took a running request's pages away; as a status: it waits to be admitted again",
    "in_flight": "tokens that are being computed in the step that runs now",
    "waiting_for_remote_kvs": "a request whose pages are on their way from another tier",
    "finished": "a request that has its answer",
    "cancelled": "a request that its client gave up",
    "priority": "smaller goes first, where the engine schedules by priority",
    # readings
    "consistency": "atomic or torn: whether everything in a reading is of one moment",
    "atomic": "everything was read between two steps of the engine: one moment.",
    "torn": "the tables were read while they changed; numbers may not fit together. atomic is one moment.",
    "epoch": "number of the cut between two steps at which the page table was frozen",
    "content": "a reading with keys and positions of all pages, without who holds them",
    "references": "a reading with reference counts and the free list on top of content",
    "read": "when and how the reading was made, how long it took, and how long the engine waited for it",
    "used": "share of the pool's pages that requests hold",
    "agent": "the part of kvctl that runs in the engine: read-only, or changes where it was allowed; N off: so many "
    "capabilities that it should have are off (kvctl doctor says which)",
    "tainted": "pages that were computed on top of a bad one: what the gates call so is KV119",
    # gates
    "gate": "a family of checks; kvctl validate runs four and the red lines, kvctl explain CODE explains each check",
    "contract": "how a page is laid out and how it is named: engine, layouts, groups, precision, hash; "
    "`kvctl fingerprint show` lists its fields",
    "redlines": "rules that must never be broken - admission, one recovery route for each state, what is "
    "checked is what is used, captured graphs stay as they were (KV501 and above)",
    "verdict": "pass, fail or abstain, of one gate",
    "pass": "of a gate: what is essential was looked at, and nothing was found",
    "fail": "of a gate: something was found; the severity says how bad it is",
    "abstain": "of a gate or code: it could not look, and says why; it never counts as pass. --fail-on abstain makes "
    "it exit code 6.",
    "experimental": "an error that is shown as a warning until 100,000 clean checks of this engine configuration are "
    "on record, or a finding of a torn reading: it may be a false alarm",
    "severity": "error: wrong answers are possible; warning: reuse or capacity is lost; info: good to know",
    "error": "of a finding: wrong answers are possible",
    "warning": "of a finding: reuse or capacity is lost, or it is an error that is still experimental",
    "info": "of a finding: good to know",
    "checked": "how many things a gate looked at: pages, decisions, tensors ...",
    "codes": "how many checks of a gate could look",
    "abstained": "how many checks of a gate could not look",
    # fingerprints and files
    "weights": "model, adapters, and a digest of the tensors that really are in memory",
    "fingerprint": "digests of contract and weights: what an engine's cached pages depend on",
    "pin": "the fingerprint that was agreed on; kvctl validate compares engines of that name with it (KV202)",
    "changes": "of weights: when and why they changed since kvctl came. Of an agent: whether it may change anything.",
    "not_compared": "fields that one side could not read: they neither differ nor are equal",
    "memory": "how the weights were read: a sample of every tensor, every byte, or not at all",
    "sample": "evenly spread elements of every tensor of the weights were read",
    "privacy": "whether a file's keys and request ids were replaced, so that it can be handed on",
    "reload": "the weights were loaded again from files",
    "update": "new weights were written into the running engine, as training does",
    "wake": "the weights were put to sleep, thrown away or woken up: what is back may not be what went",
    "lora": "an adapter was loaded again, or its bytes are others",
    "digest": "a checksum of fields or of weights; as the cause of a change: it differs from the one before, and no "
    "call that changes weights was seen",
    # what the agent can do; kvctl doctor and the overview name what is off
    "capability": "something that the agent can do on this engine; what is off has a reason",
    "binds": "capability: the pages bound at use are compared with those that were checked",
    "chain": "capability: the engine knows which page comes after which in a prefix",
    "decisions": "what each request could reuse; as a capability: look-ups are recorded",
    "engine_hit": "capability: the engine can be asked to look up one of its own requests again",
    "evidence": "capability: what the gates need beyond the tables can be read",
    "external": "capability: tokens from a connector are counted apart",
    "feed": "capability: the page table can be followed outside the engine; without it logical hits are unknown",
    "free_list": "capability: the order in which pages will be evicted can be read",
    "geometry": "capability: groups, page sizes and windows could be read",
    "hash_table": "capability: the table from keys to pages can be read whole",
    "hash_tokens": "capability: token ids can be hashed as the engine does, for tokens:FILE",
    "holders": "capability: it can be told which request holds which page",
    "invalidate": "capability: prefixes can be taken out of the cache (kvctl invalidate)",
    "layout": "order of axes and arrangement inside a row; as a capability: the workers describe their tensors",
    "overview": "capability: counters, groups, requests and decisions can be read",
    "pool": "all pages of the cache's memory; as a capability: pages and counts can be read",
    "probe": "the hooks of the agent in the engine; off: it was switched off (a file named off in the runtime folder, "
    "KVCTL_AGENT=0), or it took itself out because it failed or took too long",
    "requests": "capability: the engine's requests can be read",
    "safe_point": "capability: between two steps the engine carries out what it was asked for",
    "shadow": "capability: the cut is made while the device computes, so that the engine does not wait for it",
    "weights_digest": "capability: the bytes of the weights in memory can be read",
}
"""Words by their name in lower case, with _ for blanks and hyphens."""

ALIASES: dict[str, str] = {
    **{short.lower(): state.value for state, short in SHORT.items() if short.isalpha()},
    **{sign: status.value for status, sign in SIGN.items()},
    **dict.fromkeys(("losses", "loss", "lost_tokens", "loss_means", "share_of_the_loss"), "lost"),
    **dict.fromkeys(("limits", "limited_by", "limit"), "limiting"),
    **dict.fromkeys(("hit", "hits", "usable/logical"), "usable"),
    **dict.fromkeys(("look_up", "lookups", "looked_up"), "lookup"),
    **dict.fromkeys(("recover", "route", "routes", "recovered"), "recovery"),
    **dict.fromkeys(("red_lines", "red_line"), "redlines"),
    **dict.fromkeys(("degraded_by", "degradation"), "degraded"),
    **dict.fromkeys(("other_tiers", "fetched"), "tiers"),
    "idle": "empty", "at": "ends_at", "taint": "tainted", "pause": "read",
    "read_only": "agent", "pinned": "pin", "stamp": "registered", "findings": "gate",
    "warnings": "warning", "errors": "error", "code": "codes", "capabilities_off": "capability", "part": "contract",
    "_": "none",
}  # fmt: skip
"""Other spellings, short forms and signs, by the word that explains them."""

_GROUP = re.compile(r"[a-z_+]+\d+(/[a-z]\d+)*#\d+")


def named(topic: str) -> list[str]:
    """Return the words under which a topic may be explained: itself, its singular, what it is another spelling of."""
    name = re.sub(r"[\s-]+", "_", topic.strip().lower())
    if _GROUP.fullmatch(name):
        return ["group"]
    return [word for word in (name, ALIASES.get(name, ""), name.removesuffix("s")) if word]
