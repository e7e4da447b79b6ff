"""The Typer app of one command file.

Invariant: imports Typer and nothing else: ``kvctl --help`` pays for it.
"""

import typer


def new_app() -> typer.Typer:
    """Return the Typer app of one command file: plain help, no completion of its own, no decorated tracebacks."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
