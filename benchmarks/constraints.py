"""Makes constraints.txt and a constraints-EXTRA.txt for each extra: every package that an installation brings, with its
version and the hashes of its files. `make constraints` calls this with an interpreter that has uv; pip-tools knows only
the Python and the system that it runs on.

The versions stay as they are unless pyproject.toml needs others, or `--upgrade` is given. constraints.txt also holds what
builds ralph, and pip: then nothing comes from the index without a hash.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "pyproject.toml"
# The script that pip 23 writes for a command imports `re`, a quarter of the time of `ralph --version`. That of pip 26 does
# not.
TOOLS = ("pip>=26",)
_INDEX = "https://pypi.org/simple"
_HEAD = "# Made by `make constraints`. README.md says how to install with it.\n"


def file_of(extra: str | None) -> Path:
    """The file of an extra, or of the required packages."""
    return ROOT / (f"constraints-{extra}.txt" if extra else "constraints.txt")


def extras() -> list[str]:
    return [
        name
        for name in tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
        if name != "dev"
    ]


def main() -> None:
    wanted = [*tomllib.loads(PROJECT.read_text())["build-system"]["requires"], *TOOLS]
    old = [file_of(extra) for extra in (None, *extras())]
    with tempfile.TemporaryDirectory() as place:
        needed, all_of_them = Path(place, "needed.in"), Path(place, "all.txt")
        needed.write_text("\n".join(wanted))
        if "--upgrade" not in sys.argv:  # uv keeps the versions of the file that it writes
            all_of_them.write_text("".join(one.read_text() for one in old if one.exists()))
        # One version of each package, whichever extras are installed together.
        _compile(all_of_them, needed, *(f"--extra={extra}" for extra in extras()))
        required = Path(place, "required.txt")
        _compile(required, needed, f"--constraints={all_of_them}")
        file_of(None).write_text(_HEAD + required.read_text())
        held = _pins(required)
        for extra in extras():
            more = Path(place, f"{extra}.txt")
            _compile(more, needed, f"--constraints={all_of_them}", f"--extra={extra}")
            # A pin may be needed on more systems than without the extra: then it is in both files.
            file_of(extra).write_text(_HEAD + "".join(pin for pin in _pins(more) if pin not in held))


def _pins(file: Path) -> list[str]:
    """The packages of a file, each with its hashes."""
    return re.findall(r"^\S.*\n(?:[ ].*\n)*", file.read_text(), re.MULTILINE)


def _compile(output: Path, *more: str | Path) -> None:
    # For all systems and for each Python from 3.11 on. No file of the machine's configuration counts.
    options = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate")
    command = (sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", *options)
    subprocess.run(
        (*command, f"--default-index={_INDEX}", f"--output-file={output}", PROJECT, *more), check=True
    )


if __name__ == "__main__":
    main()
