"""Explain a reason, a finding's code, a word, or one decision."""

from typing import TYPE_CHECKING, Annotated

import typer

from agent.errors import UsageError
from kvctl.diagnostics import MEANING
from kvctl.options import Options, Part, new_app, with_options
from kvctl.reading import show
from kvctl.targets import Need

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.model.decision import Decision
    from agent.model.snapshot import Snapshot
    from inspector.report import Report

app = new_app()


@app.command()
@with_options(Part.TARGET, Part.SNAPSHOT, Part.OUTPUT, Part.TIMEOUT)
def explain(
    options: Options,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A reason, code, word, or the id of a decision.",
            metavar="TOPIC",
            autocompletion=lambda incomplete: [name for name in _topics() if name.startswith(incomplete)],
        ),
    ] = None,
) -> None:
    r"""Explain what happened and what to do about it.

    \b
    TOPIC is one of
      a reason      window_hole, not_retained, ... as decisions show it
      a code        KV301, ... as validate shows it
      a decision    its number, as decisions shows it (needs the engine or a file)
      request:ID    the latest decision of a request; ID may be as a table cut it
      a word        usable, stranded, "own hit", ...: all that tables show
      exit-codes    the exit codes of kvctl

    Without TOPIC: the list of everything that can be explained.
    """
    from inspector.views.explanations import explanation, topics

    codes = {str(int(code)): meaning.replace("`", "") for code, meaning in MEANING.items()}
    if topic is None:
        options.output.show(topics(codes))
    elif topic.replace("_", "-") in {"exit-codes", "exit-code"}:
        options.output.show(_exit_codes(codes))
    elif topic.isascii() and topic.isdigit():
        _decision(options, lambda snapshot: _numbered(snapshot, int(topic)))
    elif topic.startswith("request:"):
        _decision(options, lambda snapshot: _of_request(snapshot, topic.removeprefix("request:")))
    else:
        options.output.show(explanation(topic))


def _topics() -> list[str]:
    """Return every topic that has a name, for a shell that completes it."""
    from inspector.views.explanations import topics

    return [*dict.fromkeys(item["topic"] for item in topics({}).items), "exit-codes"]


def _exit_codes(codes: dict[str, str]) -> "Report":
    from inspector.report import Column, Report, Table

    columns = (Column(header="CODE"), Column(header="MEANING", elastic=True, wrap=True))
    items = [{"topic": code, "type": "exit codes", "title": meaning} for code, meaning in codes.items()]
    return Report(
        kind="topics",
        data={"topics": items},
        items=items,
        item_kind="topic",
        names=list(codes),
        blocks=[Table(columns=columns, rows=list(codes.items()))],
    )


def _decision(options: Options, find: "Callable[[Snapshot], Decision]") -> None:
    from inspector.views.decisions import story

    show(options, Need.DECISIONS, lambda snapshot: story(snapshot, find(snapshot)))


def _numbered(snapshot: "Snapshot", number: int) -> "Decision":
    found = snapshot.decisions or ()
    item = next((item for item in found if item.id == number), None)
    if item is None:
        known = f"decisions {found[0].id} to {found[-1].id} are remembered" if found else "no decisions are remembered"
        raise UsageError(f"there is no decision {number}", why=known, next_step="to list them: kvctl decisions")
    return item


def _of_request(snapshot: "Snapshot", name: str) -> "Decision":
    from inspector.format import clean
    from inspector.naming import called

    found = called(name, snapshot.decisions or (), lambda item: item.request)
    shown = clean(name)[:60]
    if not found:
        raise UsageError(f"there is no decision of a request {shown!r}", next_step="to list them: kvctl decisions")
    if len({item.request for item in found}) > 1:
        numbers = ", ".join(str(item.id) for item in found[-5:])
        raise UsageError(
            f"several requests are called {shown!r}",
            why=f"their decisions, the latest last: {numbers}",
            next_step=f"give one of the numbers: kvctl explain {found[-1].id}",
        )
    return found[-1]
