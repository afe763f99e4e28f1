"""`ralph completion`: prints the script for a shell. It calls `ralph --complete`, which `shell/answer.py` answers."""

# No `from __future__ import annotations` here: typer reads the annotations.

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from ralph.cli.typer_command import typer_command

_EPILOG = """\b
One line installs it:
  echo 'eval "$(ralph completion bash)"' >> ~/.bashrc
  echo 'source <(ralph completion zsh)' >> ~/.zshrc
  echo 'ralph completion fish | source' >> ~/.config/fish/config.fish"""


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="The shell.")
    ],
) -> int:
    """Print the script that completes ralph's command lines in a shell.

    The Tab key then offers commands, options, their values, the ids of your sessions and the names of your targets.
    """
    script = Path(__file__).with_name("shell") / f"ralph.{shell}"
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(script.read_text())
        sys.stdout.flush()
    return 0


COMMAND = typer_command("completion", completion, epilog=_EPILOG)
