"""Codes of gate 1, block level: the page exists, is counted right, and was not taken away.

Invariant: text only; ``agent.gates.block`` decides. Read through ``agent.gates.catalogue``.
"""

from ..model.finding import GateName, Severity
from .code import Code, sglang, vllm

_G = GateName.BLOCK
_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_RESTART = "Take the engine out of rotation and restart it; its page accounting cannot be repaired from outside."

BLOCK_CODES = (
    Code(
        code="KV101",
        gate=_G,
        severity=_E,
        title="hash table names a page whose own hash differs",
        sentence="the hash table names {count} [page that carries|pages that carry] another key, first page {page}",
        cause="An entry of the hash table was left behind when its page got another owner, so that a look-up binds a "
        "page with somebody else's tokens.",
        confirm="Compare the key in `kvctl inspect prefix page:ID` with the prefix that hits the page; repeat "
        "validate: the finding stays at the same page.",
        remedy="Invalidate the page's key, then report it to the engine's developers with a saved snapshot.",
        command="kvctl invalidate page:PAGE",
        reports=(vllm(37076),),
    ),
    Code(
        code="KV102",
        gate=_G,
        severity=_W,
        title="page carries a hash that the hash table does not have",
        sentence="{count} [page carries|pages carry] a key that the hash table does not have, first page {page}",
        cause="The entry was removed without resetting the page. The page can never be hit again, and an eviction "
        "that removes its key may remove somebody else's.",
        confirm="The pages stay in the list over several runs while nothing hits them.",
        remedy="They are reclaimed as free pages are used up. If the number grows, restart the engine.",
    ),
    Code(
        code="KV103",
        gate=_G,
        severity=_E,
        title="negative reference count",
        sentence="{count} [page has|pages have] a negative reference count, first page {page} ({value})",
        cause="A page was freed more often than it was taken: a double free.",
        confirm="KV107 or KV106 usually come with it. Compare the tables of running requests: nobody holds the page.",
        remedy=_RESTART + " Until then the page can be handed to two requests.",
        reports=(vllm(42571), vllm(1556)),
        essential=True,
    ),
    Code(
        code="KV104",
        gate=_G,
        severity=_E,
        title="referenced page is in the free list",
        sentence="{count} [page is|pages are] held and in the free list at once, first page {page}",
        cause="A page was put back while somebody still holds it, or taken without leaving the free list. The next "
        "allocation overwrites it under its holder.",
        confirm="Repeat validate: the page stays held and free at once. HELD BY in `kvctl inspect pages` is its count, "
        "where it carries a key.",
        remedy=_RESTART,
        reports=("https://github.com/vllm-project/vllm-ascend/issues/15990",),
        essential=True,
    ),
    Code(
        code="KV105",
        gate=_G,
        severity=_W,
        title="unreferenced page is in no free list",
        sentence="{count} [page is|pages are] held by nobody and in no free list (leak), first page {page}",
        cause="A path that ends a request forgot to give pages back, typically an abort or a failed transfer.",
        confirm="The number never falls while the engine idles.",
        remedy="Capacity is lost until the engine restarts; plan a restart when the number matters.",
        reports=(sglang(16067), sglang(27586)),
        essential=True,
    ),
    Code(
        code="KV106",
        gate=_G,
        severity=_W,
        title="free counter and free list disagree",
        sentence="the free counter says {counter}, the free list holds {distinct} different pages",
        cause="A page stands in the list twice, or counter and list are changed on different paths. Admission "
        "decides with the counter and then finds no page.",
        confirm="KV107 names repeated pages.",
        remedy=_RESTART,
        reports=(vllm(42571),),
        essential=True,
    ),
    Code(
        code="KV107",
        gate=_G,
        severity=_E,
        title="page twice in the free list",
        sentence="{count} [page stands|pages stand] in the free list more than once, first page {page}",
        cause="A double free. Two allocations will get the same page, and two requests write into each other.",
        confirm="The free counter is larger than the number of different free pages (KV106).",
        remedy=_RESTART,
        reports=(vllm(42571), "https://github.com/vllm-project/vllm-ascend/issues/15990"),
    ),
    Code(
        code="KV108",
        gate=_G,
        severity=_E,
        title="null page in the free list or in the hash table",
        sentence="the null page {page} is {where}",
        cause="The placeholder page was treated as a real one. Whoever gets it shares it with every window group.",
        confirm="Repeat validate: the finding stays. Of a healthy null page `kvctl inspect prefix page:ID` says that "
        "it carries no key.",
        remedy=_RESTART,
        reports=("https://github.com/ModelEngine-Group/unified-cache-management/pull/1053",),
    ),
    Code(
        code="KV109",
        gate=_G,
        severity=_E,
        title="a request's table names a page with reference count 0",
        sentence="{count} [page stands|pages stand] in request tables although nobody is counted as a holder, first "
        "page {page} of request {request} (use after free)",
        cause="A page was freed under a running request. It will be handed to somebody else and overwritten.",
        confirm="Repeat validate: the finding stays at the page while `kvctl inspect requests` shows that the request "
        "runs.",
        remedy="Abort the request; its output cannot be trusted. " + _RESTART,
        reports=(vllm(37076),),
    ),
    Code(
        code="KV110",
        gate=_G,
        severity=_E,
        title="reference count differs from the number of holders",
        sentence="{count} [page has|pages have] a count that differs from the holders, first page {page}: count "
        "{value}, holders {holders} ({requests})",
        cause="A holder was added or removed without counting it. Too low: the page is freed under a holder. Too "
        "high: it is never freed.",
        confirm="Tables of requests, pins, deferred frees, copies and transfers are all counted as holders. Repeat "
        "validate: the finding stays at the same page.",
        remedy=_RESTART,
        reports=(sglang(35270),),
        essential=True,
    ),
    Code(
        code="KV111",
        gate=_G,
        severity=_E,
        title="page owned by two groups",
        sentence="{count} [page belongs|pages belong] to two groups, first page {page}: groups {owners}; {requests}",
        cause="Two groups of layers write their own kind of state into the same bytes.",
        confirm="The finding names the page, its groups and who holds it; repeat validate: it stays while the request "
        "runs.",
        remedy=_RESTART,
    ),
    Code(
        code="KV112",
        gate=_G,
        severity=_E,
        title="page id out of range",
        sentence="{count} [page id lies|page ids lie] outside the pool of {size} pages, first {page} in {where}",
        cause="A table was read from another pool, or memory was overwritten.",
        confirm="Compare with the number of pages in `kvctl inspect overview`.",
        remedy=_RESTART,
    ),
    Code(
        code="KV113",
        gate=_G,
        severity=_E,
        title="generation moved between check and use",
        sentence="{count} [page|pages] changed between check and use, first page {page}{whose}: {how}",
        cause="A page was checked for one prefix and used after it had got another owner; or its content changed "
        "without a new generation, so that checks against the generation are void.",
        confirm="`kvctl_toctou_conflicts_total` counts it; the finding names the request that bound the page, where "
        "one did.",
        remedy="Do not trust the answers of requests that used these pages; report it to the engine's developers with "
        "a saved snapshot.",
    ),
    Code(
        code="KV114",
        gate=_G,
        severity=_E,
        title="the same hash under two prefixes with different tokens",
        sentence="one key stands for two different prefixes, pages {page} ({first:,} tokens) and {other} ({second:,} "
        "tokens)",
        cause="A hash collision, a weak hash, or a key built without something that distinguishes the two.",
        confirm="The two pages end at different positions, which a chained hash cannot do.",
        remedy="Use a cryptographic prefix hash; invalidate the key.",
        command="kvctl invalidate page:PAGE",
    ),
    Code(
        code="KV115",
        gate=_G,
        severity=_E,
        title="page in use while a transfer into or out of it runs",
        sentence="{count} [page is|pages are] in use while a transfer {direction} runs, first page {page}",
        cause="A page was handed out before the copy into it, or out of it, was acknowledged.",
        confirm="Repeat validate: a transfer ends within seconds, and the finding with it. It was wrong all the same.",
        remedy="Requests that hold the page may read or store another request's bytes: abort them, and invalidate the "
        "pages.",
        command="kvctl invalidate page:PAGE",
    ),
    Code(
        code="KV116",
        gate=_G,
        severity=_W,
        title="hash covers fewer tokens than the page holds",
        sentence="{count} [page|pages] of group {group} [carries|carry] a key that ends inside the page, "
        "first page {page} at {value} tokens",
        cause="The key was registered for a partly filled page. Where the group has partial hits this is how the "
        "engine works, and nothing is found; without them the rest of the page is never reused.",
        confirm="Position modulo the block size is not 0 in `kvctl inspect pages`.",
        remedy="Nothing is wrong with the output; report it to the engine's developers as a lost hit.",
    ),
    Code(
        code="KV117",
        gate=_G,
        severity=_E,
        title="page holds another position than its table says",
        sentence="{count} [page holds|pages hold] another position than the table says, first page {page} of request "
        "{request}: table {table}, page {value} tokens",
        cause="Tables were shifted, or a page of another prefix was bound.",
        confirm="`kvctl inspect prefix page:ID` shows the position of the page; the finding says which one the table "
        "wants.",
        remedy="Abort the request; its output cannot be trusted. Then invalidate the page.",
        command="kvctl invalidate page:PAGE",
    ),
    Code(
        code="KV118",
        gate=_G,
        severity=_E,
        title="page is in the hash table but was never computed",
        sentence="{count} [page can be hit but was|pages can be hit but were] never computed, first page {page} "
        "({value} tokens)",
        cause="The engine registers a key when it allocates. The request was preempted in the same step, so no "
        "scheduler output ever covered these pages; they hold the bytes of their previous owner.",
        confirm="The page's stamp is one of the registrations that no output covered. A request that hits it answers "
        "differently from one with another salt.",
        remedy="Invalidate exactly these pages before somebody hits them.",
        command="kvctl invalidate page:PAGES",
        reports=(vllm(57580), vllm(43569), vllm(56525)),
        essential=True,
    ),
    Code(
        code="KV119",
        gate=_G,
        severity=_E,
        title="page was computed on top of a bad one",
        sentence="{count} [page was|pages were] computed on top of a page that was never computed or belongs to other "
        "weights, first page {page}",
        cause="A request hit a page of KV118 or KV201, or ran on while the weights changed; all that follows is wrong "
        "as well.",
        confirm="The chain of the page contains a page of KV118 or KV201, now or before an eviction.",
        remedy="Invalidate them together with the pages of KV118 and KV201.",
        command="kvctl invalidate stale",
        reports=(vllm(57580),),
    ),
)
