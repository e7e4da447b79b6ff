"""Explanations as reports: a reason, a finding's code, an outcome, a state, a word, or the list of them all.

Invariant: a topic has one explanation; what is unknown is answered with the nearest names. Read by ``kvctl explain``.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from agent.errors import UsageError
from agent.gates.catalogue import CATALOGUE, GATE_TITLES
from agent.model.decision import Outcome, Reason
from agent.model.states import State

from ..explain import OUTCOMES, REASONS, STATES, WORDS
from ..format import clean
from ..report import Block, Column, Facts, Json, Report, Table


def explanation(topic: str) -> Report:
    """Return what is known of one topic.

    Raises:
        UsageError: There is no such topic.
    """
    name = topic.strip().lower().replace("-", "_")
    if name in set(Reason):
        return _reason(Reason(name))
    if topic.strip().upper() in CATALOGUE:
        return _code(topic.strip().upper())
    if name in set(Outcome):
        return _word(name, "outcome", OUTCOMES[Outcome(name)])
    if name in set(State):
        holds, cost = STATES[State(name)]
        return _word(name, "state", f"It holds {holds}. What its loss costs: {cost}.")
    if name in WORDS:
        return _word(name, "word", WORDS[name])
    known = [*map(str, Reason), *WORDS, *map(str, Outcome), *map(str, State), *(code.lower() for code in CATALOGUE)]
    near = [word for word in known if name and word.startswith(name[:4])] or get_close_matches(name, known)
    raise UsageError(
        f"nothing is known of {clean(topic)[:40]!r}",
        why=f"did you mean {' or '.join(near[:2])}?" if near else None,
        next_step="kvctl explain lists everything that can be explained; a number is the id of a decision",
    )


def _reason(reason: Reason) -> Report:
    entry = REASONS[reason]
    facts = [
        ("REASON", [f"{reason}: {entry.title}"]),
        ("CAUSE", [entry.cause]),
        ("CONFIRM", [entry.confirm]),
        ("DO", [entry.action, *entry.commands]),
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
    code = CATALOGUE[name]
    commands = [code.command] if code.command else []
    facts = [
        ("CODE", [f"{code.code}: {code.title}"]),
        ("GATE", [f"{GATE_TITLES[code.gate]}; severity {code.severity}"]),
        ("CAUSE", [code.cause]),
        ("CONFIRM", [code.confirm]),
        ("DO", [code.remedy, *commands]),
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
        reports=list(code.reports),
    )


def _word(name: str, kind: str, text: str) -> Report:
    return _report(Facts(facts=[(kind.upper(), [name]), ("MEANS", [text])]), topic=name, type=kind, title=text)


def _report(block: Block, **data: object) -> Report:
    fields = ("topic", "type", "title", "cause", "confirm", "action", "commands", "severity", "reports")
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
        ("words", [(word, text.split(": ", 1)[-1]) for word, text in WORDS.items()]),
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
