"""The package that people install: its name, its contents, and that it works without a checkout."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from packaging.requirements import Requirement

from ralph import __version__
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.message import Message

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Built(NamedTuple):
    wheel: Path
    source: Path

    @property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as wheel:
            (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return Parser().parsestr(wheel.read(name).decode())


def done(command: Sequence[str | Path], **options: object) -> str:
    """Runs a command that must succeed, and returns its standard output."""
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=within_s(300), **options
    )  # type: ignore[call-overload]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return str(ran.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """The wheel and the source distribution, built with the build backend that `pip` uses too."""
    directory = tmp_path_factory.mktemp("dist")
    done([sys.executable, "-m", "hatchling", "build", "-d", directory], cwd=ROOT)
    (wheel,), (source,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return Built(wheel, source)


def test_the_quick_start_can_install_it_as_it_is_edited(tmp_path) -> None:
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    done([sys.executable, "-c", code, tmp_path], cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        (link,) = (name for name in made.namelist() if name.endswith(".pth"))
        assert made.read(link).decode().strip() == str(ROOT)


def test_the_distribution_has_a_name_of_its_own_and_the_index_would_take_it(built) -> None:
    assert built.wheel.name == f"ralph_headless-{__version__}-py3-none-any.whl"
    assert built.source.name == f"ralph_headless-{__version__}.tar.gz"
    done([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built])
    metadata = built.metadata
    assert metadata["Name"] == "ralph-headless"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Keywords"]
    assert metadata.get_all("Classifier")
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    # The metadata names no people and no places, only the project.
    personal = ("Author", "Author-email", "Maintainer", "Maintainer-email", "Home-page", "Project-URL")
    assert [name for name in personal if name in metadata] == []


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licenses = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    tracked = done(["git", "ls-files", "--cached", "--others", "--exclude-standard", "ralph"], cwd=ROOT)
    page = f"ralph_headless-{__version__}.data/data/share/man/man1/ralph.1"
    pages = {f"ralph/docs/{one.name}" for one in (ROOT / "docs").glob("*.md")}
    pages |= {f"ralph/docs/examples/{one.name}" for one in (ROOT / "docs/examples").iterdir()}
    assert held == {page} | pages | {name for name in tracked.splitlines() if (ROOT / name).exists()}
    assert len(licenses) == 1


def test_the_repository_holds_nothing_that_git_ignores() -> None:
    """Ignored files that tests make, for example links to the programs of the machine."""
    assert done(["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT) == ""


def test_the_source_archive_holds_what_a_checkout_does(built) -> None:
    with tarfile.open(built.source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "quickstart.py", "loop.sh", "pyproject.toml"} <= held
    assert {
        "tests/test_distribution.py",
        "specs/README.md",
        "docs/loop.md",
        "ralph/cli/command_line.py",
    } <= held
    assert not [name for name in held if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def needed(requirements: Sequence[str], found: set[str] | None = None) -> set[str]:
    """The distributions that `requirements` and their own requirements name. Their versions must be those that are
    installed here.
    """
    found = set() if found is None else found
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        one = distribution(requirement.name)
        assert requirement.specifier.contains(one.version, prereleases=True), requirement
        if requirement.name not in found:
            found.add(requirement.name)
            needed(one.requires or [], found)
    return found


def put_into(environment: Path, one: Distribution) -> None:
    """Links the files of an installed distribution into another environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    installed = Path(str(one.locate_file(""))).resolve()
    for file in one.files or ():
        outside = os.path.normpath(installed / file).startswith(f"{installed}{os.sep}") is False
        link = site / (file if outside else file.parts[0])
        if not link.exists():
            link.symlink_to(os.path.normpath(installed / (file if outside else file.parts[0])))


def unpack(wheel: Path, environment: Path) -> None:
    """Installs a wheel as the standard describes it (Binary distribution format): its files, and a program for each of
    its entry points. pip does the same and takes a second.
    """
    (site,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (entries,) = site.glob("ralph_headless-*.dist-info/entry_points.txt")
    parsed = configparser.ConfigParser()
    parsed.read_string(entries.read_text())
    for name, place in parsed["console_scripts"].items():
        module, _, function = place.partition(":")
        program = environment / "bin" / name
        lines = f"#!{environment}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        program.write_text(lines)
        program.chmod(0o755)


def test_the_wheel_runs_the_demo_in_an_empty_environment(built, tmp_path) -> None:
    """The environment contains only the dependencies that the wheel names."""
    environment, home = tmp_path / "environment", tmp_path / "home"
    home.mkdir()
    done([sys.executable, "-m", "venv", "--without-pip", environment])
    unpack(built.wheel, environment)
    for name in needed(built.metadata.get_all("Requires-Dist", [])):
        put_into(environment, distribution(name))

    isolated = {"PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}
    ralph = environment / "bin" / "ralph"
    assert done([ralph, "--version"], cwd=home, env=isolated).strip().endswith(__version__)
    shown = done([ralph, "demo", "--speed", "100"], cwd=home, env=isolated)
    assert "tests              pass" in shown
    assert "\n## Troubleshooting\n" in done(
        [environment / "bin/ralph-headless", "help", "retry"], cwd=home, env=isolated
    )
    assert done([ralph, "loop", "init"], cwd=home, env=isolated)
    assert (home / "loop.sh").read_bytes() == (ROOT / "loop.sh").read_bytes()


def test_what_names_the_distribution_names_this_one() -> None:
    """`pip install ralph` and `ralph[otel]` would install an unrelated program."""
    extra = re.compile(r"(?<![\w-])ralph\[|(?:pip|pipx|uv tool) install (?:'|\")?ralph(?![\w-])")
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml", ROOT / "quickstart.py"]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "specs").glob("*.md"), *(ROOT / "ralph").rglob("*.py")]
    assert [str(page) for page in pages if extra.search(page.read_text())] == []
    assert PROJECT["name"] == "ralph-headless"
