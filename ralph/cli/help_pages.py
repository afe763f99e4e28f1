"""The commands that print what an installed ralph has beside its modules: `ralph help` shows the pages of the documentation, and `ralph completion`
prints the script for a shell, which calls `ralph --complete` (`shell/answer.py`).
"""

# No `from __future__ import annotations` here: typer reads the annotations.

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from ralph.cli.command_line import LEAST_ALIKE
from ralph.cli.typer_command import typer_command
from ralph.machine.own_programs import own_program, search_around, without_unsafe_loads
from ralph.values.outcome import CannotError, Outcome, UsageError, nearest

_PACKAGE = Path(__file__).parents[1]
_PAGER = ("less", "-FRX")
_OTHER_NAMES = {
    "run": "using",
    "demo": "using",
    "completion": "shell",
    "api": "models",
    "claude": "from-claude",
}
"""Words that people try which are the name of no page."""
_MAP = "README"
_MAP_PART = re.compile(r"^## (.*)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_LINKED_PAGE = re.compile(r"\]\(([a-z-]+)\.md\)")
_LINK = re.compile(r"\[([^][]+)\]\(([^()\s]+)\)")


def show_page(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The page, such as loop or sandbox.")
    ] = None,
) -> int:
    """Show a page of the documentation; without a topic, list the pages.

    On a terminal the page opens in `less`. For the options of a command, use its --help, as in `ralph run --help`.
    """
    directory = _directory()
    pages = {page.stem: page for page in sorted(directory.glob("*.md")) if page.stem != _MAP}
    if topic is None:
        _show("\n".join(_listed(pages, (directory / f"{_MAP}.md").read_text(encoding="utf-8"))) + "\n")
        return 0
    asked = Path(topic.lower()).name.removesuffix(".md")
    name = _OTHER_NAMES.get(asked, asked)
    if name not in pages:
        near = nearest(name, pages, LEAST_ALIKE)
        also = f"did you mean `ralph help {near}`?" if near else "`ralph help` lists the pages"
        raise UsageError(f"there is no page `{topic}`: {also}")
    _show(_LINK.sub(lambda link: _named(link[1], link[2], pages), pages[name].read_text(encoding="utf-8")))
    return 0


def _listed(pages: dict[str, Path], text: str) -> list[str]:
    """The lines with all pages, in the order and below the headings in which `text`, the map of the pages, links to them."""
    lines, width = ["Pages of the documentation; a new user needs the first ones:"], max(map(len, pages))
    for heading, body in _MAP_PART.findall(text):
        named = [name for name in _LINKED_PAGE.findall(body) if name in pages]
        lines += [f"\n{heading}"] if named else []
        lines += [f"  ralph help {name:{width}}  {_title(pages[name])}" for name in named]
    return lines


def _directory() -> Path:
    """The directory with the pages. Raises CannotError if this installation has none."""
    for directory in (_PACKAGE / "docs", _PACKAGE.parent / "docs"):  # installed, and in a clone
        if (directory / f"{_MAP}.md").is_file():
            return directory
    raise CannotError(f"{_PACKAGE / 'docs'} is missing: install ralph again", Outcome.IO_ERROR)


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()


def _named(text: str, target: str, pages: dict[str, Path]) -> str:
    """The text in place of a link, on a page that is shown as text. Of a link to a file of the clone, only the text is left."""
    if "://" in target:
        return f"{text} ({target})"
    page = target.partition("#")[0].removesuffix(".md")
    return f"{text} (ralph help {page})" if page in pages else text


def _show(text: str) -> None:
    if sys.stdout.isatty() and _is_paged(text.encode()):
        return
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()


def _is_paged(page: bytes) -> bool:
    """Shows the page in `less`. False if that cannot be started, for lack of it, of processes or of a working directory."""
    with suppress(OSError):
        search = search_around(os.environ, (Path.cwd(),))
        pager = own_program(_PAGER[0], search)
        if pager is not None:
            environment = {
                **without_unsafe_loads(os.environ, search),
                "LESSCHARSET": "utf-8",
                "LESSSECURE": "1",
            }
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager, which would outlive ralph
            subprocess.run([pager, *_PAGER[1:]], input=page, env=environment, check=False)
            return True
    return False


COMMAND = typer_command("help", show_page)


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


COMPLETION = typer_command("completion", completion, epilog=_EPILOG)
