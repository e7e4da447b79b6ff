"""Explanations as reports: a reason, a finding's code, an outcome, a state, a word, or the list of them all.

Invariant: a topic has one explanation; what is unknown is answered with the nearest names. Read by ``kvctl explain``.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from agent.errors import UsageError
from agent.gates.blind import sentences
from agent.gates.catalogue import CATALOGUE, GATE_TITLES
from agent.model.decision import Outcome, Reason
from agent.model.finding import GateName
from agent.model.states import State, Status

from ..explain import OUTCOMES, REASONS, STATES
from ..format import clean
from ..glossary import STATUSES, WORDS, named
from ..report import Block, Column, Facts, Json, Report, Table


def explanation(topic: str) -> Report:
    """Return what is known of one topic; of several that are joined with ``+`` what is known of each.

    Raises:
        UsageError: There is no such topic.
    """
    if topic.strip().upper() in CATALOGUE:
        return _code(topic.strip().upper())
    parts = [part for part in topic.split("+") if part.strip()]
    if len(parts) > 1 and all(map(_found, parts)):
        reports = [explanation(part) for part in parts]
        first = reports[0]
        return Report(kind=first.kind, data=first.data, names=parts, blocks=[b for one in reports for b in one.blocks])
    name = _found(topic)
    if name in set(Reason):
        return _reason(Reason(name))
    if name is not None:
        return _words(name, _meanings(name))
    asked = named(topic)[0] if topic.strip() else ""
    known = [*map(str, Reason), *WORDS, *map(str, Outcome), *map(str, State), *(code.lower() for code in CATALOGUE)]
    near = [word for word in known if asked and word.startswith(asked[:4])] or get_close_matches(asked, known)
    raise UsageError(
        f"nothing is known of {clean(topic)[:40]!r}",
        why=f"did you mean {' or '.join(near[:2])}?" if near else None,
        next_step="kvctl explain lists everything that can be explained; a number is the id of a decision",
    )


def _found(topic: str) -> str | None:
    """Return the name under which a topic is explained."""
    return next((name for name in named(topic) if name in set(Reason) or _meanings(name)), None)


def _meanings(name: str) -> list[tuple[str, str]]:
    """Return what a word means where it is no reason: as what, and the sentence."""
    found: list[tuple[str, str]] = []
    if name in set(Outcome) and name != Outcome.UNKNOWN:
        found.append(("outcome", OUTCOMES[Outcome(name)]))
    if name in set(State) and name != State.UNKNOWN:
        holds, cost = STATES[State(name)]
        found.append(("state", f"It holds {holds}. What its loss costs: {cost}."))
    if name in set(Status):
        found.append(("status", STATUSES[Status(name)]))
    if name in set(GateName) and name != GateName.REDLINES:  # a word of its own
        found.append(("gate", GATE_TITLES[GateName(name)]))
    if name in WORDS:
        found.append(("word", WORDS[name]))
    return found


def _reason(reason: Reason) -> Report:
    entry = REASONS[reason]
    facts = [
        ("REASON", [f"{reason}: {entry.title}"]),
        ("CAUSE", [entry.cause]),
        ("CONFIRM", [entry.confirm]),
        ("DO", [entry.action, *entry.commands]),
        *((f"AS A {kind.upper()}", [text]) for kind, text in _meanings(reason.value)),
    ]
    return _report(
        Facts(facts=facts),
        topic=reason.value,
        type="reason",
        title=entry.title,
        cause=entry.cause,
        confirm=entry.confirm,
        action=entry.action,
        commands=list(entry.commands),
    )


def _code(name: str) -> Report:
    code, blind = CATALOGUE[name], sentences(name)
    commands = [code.command] if code.command else []
    facts = [
        ("CODE", [f"{code.code}: {code.title}"]),
        ("GATE", [f"{GATE_TITLES[code.gate]}; severity {code.severity}"]),
        ("CAUSE", [code.cause]),
        ("CONFIRM", [code.confirm]),
        ("DO", [code.remedy, *commands]),
        *([("NOT LOOKED AT", blind)] if blind else []),
        *([("REPORTS", list(code.reports))] if code.reports else []),
    ]
    return _report(
        Facts(facts=facts),
        topic=code.code,
        type="finding",
        title=code.title,
        cause=code.cause,
        confirm=code.confirm,
        action=code.remedy,
        commands=commands,
        severity=code.severity.value,
        not_looked_at=blind,
        reports=list(code.reports),
    )


def _words(name: str, meanings: Sequence[tuple[str, str]]) -> Report:
    facts = [fact for kind, text in meanings for fact in ((kind.upper(), [name]), ("MEANS", [text]))]
    title = "; ".join([meanings[0][1], *(f"as a {kind}: {text}" for kind, text in meanings[1:])])
    return _report(Facts(facts=facts), topic=name, type=meanings[0][0], title=title)


_FIELDS = (
    *("topic", "type", "title", "cause", "confirm", "action", "commands"),
    *("severity", "reports", "not_looked_at"),
)


def _report(block: Block, **data: object) -> Report:
    fields = (
        "topic",
        "type",
        "title",
        "cause",
        "confirm",
        "action",
        "commands",
        "severity",
        "reports",
        "not_looked_at",
    )
    whole: Json = {name: data.get(name) for name in fields}
    return Report(kind="explanation", data=whole, names=[str(whole["topic"])], blocks=[block])


def topics(exit_codes: Mapping[str, str]) -> Report:
    """Return the list of everything that can be explained.

    Args:
        exit_codes: Meaning of each exit code: they belong to the command line.
    """
    columns = (Column(header="TOPIC"), Column(header="MEANING", elastic=True, wrap=True))
    lists: list[tuple[str, list[tuple[str, str]]]] = [
        ("reasons why tokens were not reused", [(reason.value, REASONS[reason].title) for reason in Reason]),
        ("findings", [(code.code, code.title) for code in CATALOGUE.values()]),
        ("outcomes", [(outcome.value, OUTCOMES[outcome]) for outcome in Outcome if outcome is not Outcome.UNKNOWN]),
        ("states", [(state.value, STATES[state][0]) for state in State if state is not State.UNKNOWN]),
        ("status of a state", [(status.value, STATUSES[status]) for status in Status]),
        ("words", list(WORDS.items())),
        ("exit codes", list(exit_codes.items())),
    ]
    items: list[Json] = [{"topic": name, "type": title, "title": text} for title, rows in lists for name, text in rows]
    return Report(
        kind="topics",
        data={"topics": items},
        items=items,
        item_kind="topic",
        names=[item["topic"] for item in items],
        blocks=[Table(columns=columns, rows=rows, title=title) for title, rows in lists],
    )
