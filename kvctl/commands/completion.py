"""Print the completion script of a shell."""

from enum import StrEnum
from typing import Annotated

import typer

from kvctl.options import Options, Part, new_app, with_options

app = new_app()


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
@with_options(Part.OUTPUT)
def completion(
    options: Options, shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)]
) -> None:
    r"""Print the completion script of a shell.

    \b
    bash   source <(kvctl completion bash)          in ~/.bashrc
    zsh    kvctl completion zsh > ~/.zfunc/_kvctl   ~/.zfunc in fpath
    fish   kvctl completion fish > ~/.config/fish/completions/kvctl.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    options.output.write(
        get_completion_script(prog_name="kvctl", complete_var="_KVCTL_COMPLETE", shell=shell.value) + "\n"
    )
