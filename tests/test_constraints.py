"""The files of `make constraints` hold all that an installation brings, with hashes; and nothing that ralph prints or
documents asks the index for a package of ralph's name.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.constraints import TOOLS, extras, file_of
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
BUILD = PYPROJECT["build-system"]["requires"]
_PIN = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
OTHER_MACHINES = [
    {"sys_platform": system, "platform_system": name, "platform_machine": machine, **python}
    for system, name in (("linux", "Linux"), ("darwin", "Darwin"))
    for machine in ("x86_64", "aarch64")
    for python in ({"python_version": f"3.{n}", "python_full_version": f"3.{n}.1"} for n in (11, 12, 13, 14))
]


class Pin(NamedTuple):
    version: str
    marker: str | None
    hashes: int


def pins_of(file: Path) -> dict[str, Pin]:
    text = file.read_text()
    pins = {
        name: Pin(version, marker or None, hashes.count("sha256:"))
        for name, version, marker, hashes in _PIN.findall(text)
    }
    rest = _PIN.sub("", text)
    assert [line for line in rest.splitlines() if not line.startswith("#")] == [], (
        "each line is part of a pin"
    )
    return pins


def closure(
    requirements: Iterable[str], found: dict[str, list[Requirement]] | None = None
) -> dict[str, list[Requirement]]:
    """The packages that `requirements` and their own requirements bring here, each with all that is required of it."""
    found = {} if found is None else found
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        known = found.setdefault(name, [])
        if requirement in known:
            continue
        known.append(requirement)
        closure(_required_by(requirement), found)
    return found


def _required_by(requirement: Requirement) -> Iterator[str]:
    for text in distribution(requirement.name).requires or []:
        marker = Requirement(text).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            yield text.partition(";")[0]


def wanted(extra: str | None) -> list[str]:
    needed = (
        [*PROJECT["dependencies"], *BUILD, *TOOLS]
        if extra is None
        else PROJECT["optional-dependencies"][extra]
    )
    applies = [one for one in map(Requirement, needed) if one.marker is None or one.marker.evaluate()]
    return [str(one).partition(";")[0] for one in applies]


@pytest.mark.parametrize("extra", [None, *extras()])
def test_the_file_holds_what_is_installed_with_it(extra: str | None) -> None:
    """In the environment of the tests, which has all extras."""
    pins = pins_of(file_of(None)) | (pins_of(file_of(extra)) if extra else {})
    found = closure(wanted(extra))
    for name, requirements in found.items():
        assert name in pins, f"run `make constraints`: {file_of(extra).name} lacks {name}"
        marker = pins[name].marker
        assert marker is None or Marker(marker).evaluate(), name
        for requirement in requirements:
            assert requirement.specifier.contains(pins[name].version, prereleases=True), (
                requirement,
                pins[name],
            )
    own = pins_of(file_of(extra))
    here = {name for name, pin in own.items() if pin.marker is None or Marker(pin.marker).evaluate()}
    assert here <= set(found), "nothing else is installed"


@every_row("machine", OTHER_MACHINES)
def test_what_ralph_itself_names_is_pinned_on_each_system_and_python(machine: dict[str, str]) -> None:
    environment: dict[str, str | AbstractSet[str]] = {**default_environment(), **machine}  # type: ignore[dict-item]  # a TypedDict of texts
    for extra in (None, *extras()):
        pins = pins_of(file_of(None)) | (pins_of(file_of(extra)) if extra else {})
        for text in (
            [*PROJECT["dependencies"], *BUILD] if extra is None else PROJECT["optional-dependencies"][extra]
        ):
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                pin = pins[canonicalize_name(requirement.name)]
                assert pin.marker is None or Marker(pin.marker).evaluate(environment), text
                assert requirement.specifier.contains(pin.version), text


def test_the_files_agree_and_name_no_index() -> None:
    held: dict[str, str] = {}
    for extra in (None, *extras()):
        text = file_of(extra).read_text()
        assert "://" not in text
        assert "index" not in text.lower()
        for name, pin in pins_of(file_of(extra)).items():
            assert held.setdefault(name, pin.version) == pin.version, name
            assert pin.hashes >= 1
    assert "ralph-headless" not in held


def test_the_environment_of_the_tests_has_every_extra() -> None:
    for extra in extras():
        for text in wanted(extra):
            try:
                distribution(Requirement(text).name)
            except PackageNotFoundError:  # pragma: no cover - the message is what counts
                pytest.fail(f"{text} of {extra} is not installed, so its closure was not compared")


FROM_THE_INDEX = re.compile(
    r"ralph-headless\[|(?:install|download|run|uvx|--from|--spec|default|value|INSTALL)\b[^\n]{0,60}?\bralph-headless(?![\w.-])"
)


@every_row(
    ("text", "is_wrong"),
    [
        ("pip install 'ralph-headless[fleet]'", True),
        ("pipx install ralph-headless", True),
        ("pip install --no-deps ralph-headless", True),
        ("uvx --from ralph-headless ralph", True),
        ("default: ralph-headless", True),
        ("{name: RALPH_INSTALL, value: ralph-headless}", True),
        ("`ralph-headless[otel]`", True),
        ("The distribution is called `ralph-headless`, the command is `ralph`.", False),
        ("pip install '.[fleet]'", False),
        ("dist/ralph_headless-0.1.0-py3-none-any.whl", False),
    ],
)
def test_the_pattern_finds_what_asks_the_index(text: str, is_wrong: bool) -> None:
    assert bool(FROM_THE_INDEX.search(text)) is is_wrong


def test_nothing_asks_the_index_for_ralph() -> None:
    """The name is not registered there: somebody else may do that."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.check_output(listed, cwd=ROOT, text=True).splitlines()
    found = []
    for name in files:
        if name == "tests/test_constraints.py" or not (ROOT / name).is_file():
            continue
        try:
            lines = (ROOT / name).read_text().splitlines()
        except UnicodeDecodeError:  # a picture
            continue
        found += [f"{name}: {line}" for line in lines if FROM_THE_INDEX.search(line)]
    # `pip install '.[dev]'` takes the extras of the directory that it installs.
    assert found == ['pyproject.toml:     "ralph-headless[fleet,mcp,otel,sandbox]",']
