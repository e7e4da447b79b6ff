"""Codes of gate 4, byte-level alignment, and of the red lines.

Invariant: text only; ``agent.gates.alignment`` and ``agent.gates.redlines`` decide. Read through
``agent.gates.catalogue``.
"""

from ..model.finding import GateName, Severity
from .code import Code, vllm

_A, _R = GateName.ALIGNMENT, GateName.REDLINES
_E, _W = Severity.ERROR, Severity.WARNING
_LAYOUT = "Do not serve with this layout; choose block size, page padding or backend so that the rule holds."

ALIGNMENT_CODES = (
    Code(
        code="KV401",
        gate=_A,
        severity=_E,
        title="base address not aligned",
        sentence="{count} [tensor starts|tensors start] at an address that is no multiple of {required}, first "
        "{layer} on rank {rank}: {value} bytes off",
        cause="The storage was allocated, or offset into, without the alignment that the kernel reads with.",
        confirm="Address modulo the required alignment is in the finding.",
        remedy=_LAYOUT,
        essential=True,
    ),
    Code(
        code="KV402",
        gate=_A,
        severity=_E,
        title="block stride is no multiple of the required alignment",
        sentence="{count} [tensor has|tensors have] a block stride that is no multiple of {required}, first {layer} "
        "on rank {rank}: {value} bytes",
        cause="Page 0 is aligned, page 1 is not.",
        confirm="Stride modulo the required alignment is not 0.",
        remedy=_LAYOUT,
        essential=True,
    ),
    Code(
        code="KV403",
        gate=_A,
        severity=_E,
        title="page bytes not padded to the kernel's unit",
        sentence="{count} [layer has|layers have] pages that are not padded to the kernel's unit of {required} bytes, "
        "first {layer}: {value} bytes",
        cause="The kernel copies whole units (576 bytes for rows of FlashMLA in fp8) and reads beyond a page that is "
        "not padded.",
        confirm="Page bytes modulo the unit are not 0.",
        remedy=_LAYOUT,
    ),
    Code(
        code="KV404",
        gate=_A,
        severity=_E,
        title="last page ends beyond the allocation",
        sentence="{count} [tensor ends beyond its|tensors end beyond their] allocation, first {layer} on rank {rank}: "
        "{value} bytes over",
        cause="Pages were counted with another stride or page size than the memory was allocated with.",
        confirm="Address, stride, pages and allocation are in the finding's values.",
        remedy=_LAYOUT,
    ),
    Code(
        code="KV405",
        gate=_A,
        severity=_E,
        title="tensors overlap that must not",
        sentence="{layer} and {other} of group {group} share bytes of the same page on rank {rank}",
        cause="Layers of one group got overlapping offsets. Layers of different groups share bytes by design.",
        confirm="Both tensors' address and page bytes are in the finding's values.",
        remedy=_LAYOUT,
    ),
    Code(
        code="KV406",
        gate=_A,
        severity=_E,
        title="row not aligned for bulk copies",
        sentence="{count} [layer has|layers have] rows that bulk copies cannot read, first {layer}: {value} bytes, no "
        "multiple of {required}",
        cause="Bulk copies move multiples of 16 bytes.",
        confirm="Row bytes modulo the required alignment are not 0.",
        remedy=_LAYOUT,
    ),
    Code(
        code="KV407",
        gate=_A,
        severity=_W,
        title="host page not pinned or not page-aligned",
        sentence="{count} host [pool is|pools are] {what}, first {layer}",
        cause="The pool was allocated without page-locking; copies are staged and slow, and some cannot run "
        "asynchronously.",
        confirm="`/proc/PID/limits` of the worker (max locked memory) is the limit that the pool has to fit in.",
        remedy="Allow page-locked memory (ulimit -l, container limits) and restart.",
    ),
    Code(
        code="KV408",
        gate=_A,
        severity=_E,
        title="file size differs from page size",
        sentence="tier {tier}: {count} [file has|files have] another size than a page, first {name}: {value} bytes "
        "where {expected} belong",
        cause="A write was interrupted, or two stores shared a temporary name; the index says that it is there.",
        confirm="Compare the size on disk.",
        remedy="Remove or quarantine the files; a later request recomputes them.",
    ),
    Code(
        code="KV409",
        gate=_A,
        severity=_E,
        title="device reports uncorrected memory errors or pending row remaps",
        sentence="device {device}: {what}",
        cause="The memory is failing; a cached page may hold other bytes than were written.",
        confirm="`nvidia-smi -q -d ECC,ROW_REMAPPER`.",
        remedy="Drain the device and reset or replace it.",
    ),
)

REDLINE_CODES = (
    Code(
        code="KV501",
        gate=_R,
        severity=_W,
        title="admission: reusable cache pinned above the cap",
        sentence="{value} of {size} pages are pinned reusable cache while requests wait; the cap is {cap}",
        cause="Cached pages that cannot be evicted take the room of waiting requests.",
        confirm="`kvctl inspect overview` shows the waiting requests; the finding has the pinned pages and the cap.",
        remedy="Lower the cap or unpin.",
    ),
    Code(
        code="KV502",
        gate=_R,
        severity=_W,
        title="admission: the waiting request can never be admitted",
        sentence="request {request} needs {value} pages under the runtime formula, the pool has {size}: it waits for "
        "ever",
        cause="Sizing and admission use two formulas; a request that sizing accepted is never admitted.",
        confirm="The request waits although nothing runs.",
        remedy="Abort the request; lower the maximum length or give the pool more pages.",
        reports=(vllm(39734), vllm(45388)),
    ),
    Code(
        code="KV503",
        gate=_R,
        severity=_W,
        title="requeue loop",
        sentence="request {request} was admitted and returned {value} times",
        cause="Each admission takes the pages of another running request, which takes them back.",
        confirm="`kvctl inspect requests` shows its preemptions rising without progress.",
        remedy="Fewer running requests, or more pages.",
        reports=(vllm(57104), "https://github.com/vllm-project/vllm-ascend/issues/16315"),
    ),
    Code(
        code="KV511",
        gate=_R,
        severity=_E,
        title="one recovery path used for two states",
        sentence="states {first} and {second} were recovered by the same route {route}",
        cause="The five states differ in what makes them whole; a shared route skips what one of them needs.",
        confirm="The finding names both states and the route that they share.",
        remedy="Do not trust the answers after such a recovery; report it to the engine's developers: each state needs "
        "a route of its own.",
    ),
    Code(
        code="KV521",
        gate=_R,
        severity=_E,
        title="a plan was executed under another generation",
        sentence="the plan ({plan}) was {done} {count} [page|pages] had changed since, first page {page}: generation "
        "{planned} is now {found}{then}",
        cause="Between plan and execution the pages got other owners. An admission is a plan, too: pages under the "
        "generations that its look-up found.",
        confirm="The plan file holds the generations it was made with; an admission is named by its request.",
        remedy="Where it was refused: make a new plan. Where it was executed, the pages were other prefixes than "
        "intended: take them out, send a request that bound them again, its answer is suspect, and report it to the "
        "engine's developers with a saved snapshot.",
        command="kvctl invalidate SELECTOR --save-plan FILE",
    ),
    Code(
        code="KV522",
        gate=_R,
        severity=_E,
        title="pages bound at use are not those checked",
        sentence="{count} [page was bound that is not the one|pages were bound that are not those] checked, last "
        "request {request}: checked {checked}, bound {page}",
        cause="Check and bind are not one critical section.",
        confirm="`kvctl_toctou_conflicts_total` counts it.",
        remedy="Do not trust the answers of the named requests; send them again, and report it to the engine's "
        "developers with a saved snapshot.",
    ),
    Code(
        code="KV531",
        gate=_R,
        severity=_E,
        title="buffer address changed since graph capture",
        sentence="buffer {name} has moved since the graph was captured",
        cause="A captured graph reads and writes the old address.",
        confirm="Both addresses are in the finding's values.",
        remedy="Capture again or restart; answers since the move cannot be trusted.",
        reports=(vllm(43810),),
    ),
    Code(
        code="KV532",
        gate=_R,
        severity=_E,
        title="padding rows of a captured batch hold live page ids",
        sentence="{where}: padding in {which} still names {named}, which {writer} would write into",
        cause="Rows beyond the live ones were not set to the null page. A captured graph, or a dummy batch of a data "
        "parallel engine, writes through them.",
        confirm="The rows of the block table are in the finding's values.",
        remedy="Report it to the engine's developers with a saved snapshot. Where graphs are captured, eager execution "
        "avoids it after a restart; where none are, as on a CPU, only dummy batches of a data parallel engine write "
        "through these rows.",
        reports=(vllm(43810), vllm(43869)),
    ),
    Code(
        code="KV541",
        gate=_R,
        severity=_W,
        title="event stream and page table disagree",
        sentence="the event stream says {value} cached pages, the page table {expected}",
        cause="Events were lost or reordered; routers decide with a wrong picture.",
        confirm="Compare with `kvctl inspect overview`.",
        remedy="Let the consumer replay the stream.",
    ),
)
