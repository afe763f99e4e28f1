"""`ralph completion`: prints the script that completes ralph's command lines in a shell. The scripts call
`ralph --complete`, which `shell/answer.py` answers.
"""

# No `from __future__ import annotations` here: the options are read from the annotations.

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.cli.line_command import LineCommand, Section, Typed
from ralph.cli.parameters import Argument
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from typing import Annotated
else:
    from ralph.values.setting import Declared as Annotated

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\b
One line installs it:
  echo 'eval "$(ralph completion bash)"' >> ~/.bashrc
  echo 'source <(ralph completion zsh)' >> ~/.zshrc
  echo 'ralph completion fish | source' >> ~/.config/fish/config.fish"""


class CompletionLine(Struct, frozen=True, kw_only=True):
    shell: Annotated[str | None, Argument("bash, zsh or fish.", "|".join(SHELLS))] = None


def completion(line: CompletionLine, _typed: Typed) -> int:
    """Print the script that completes ralph's command lines in a shell.

    The Tab key then offers commands, options, their values, the ids of your sessions and the names of your targets.
    """
    if line.shell not in SHELLS:
        lack = "name a shell" if line.shell is None else f"{line.shell!r} is no shell that ralph completes in"
        raise UsageError(f"{lack}: ralph completion {'|'.join(SHELLS)}")
    script = Path(__file__).with_name("shell") / f"ralph.{line.shell}"
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.write(script.read_text())
        sys.stdout.flush()
    return 0


COMMAND = LineCommand("completion", completion, (Section(CompletionLine),), epilog=_EPILOG)
