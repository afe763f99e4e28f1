"""The commands `ralph demo` and `ralph mock-api`, in which a script gives the answers instead of a model."""

# No `from __future__ import annotations` here: typer reads the annotations.

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from ralph import mock_api as server
from ralph.cli.command_line import wrong_value
from ralph.cli.typer_command import option, typer_command
from ralph.demo import run_demo
from ralph.values.outcome import CannotError, Outcome, ShortageError, nearest


def demo(
    *,
    scenario: Annotated[
        Literal["fix", "fallback", "outage", "loop"],
        option(
            "fix: a rate limit, an overload and a broken stream on the way (6 s). fallback: an overloaded "
            "model, a spare one with two keys, and back (4 s). outage: a server that is down for a while, under "
            "--retry patient; one second stands for a minute (10 s). loop: `ralph loop` over three iterations, with an "
            "outage in the second; one second stands for a minute (7 s)."
        ),
    ] = "fix",
    speed: Annotated[float, option("Divide the waits for the API by this.", "FACTOR")] = 1.0,
    keep: Annotated[bool, option("Keep the demo's directory, and print its path.")] = False,
) -> int:
    """Show ralph at work without a key or a network. The loop, HTTP and the tools are real; the model is scripted."""
    if not speed > 0:
        raise wrong_value("--speed", "must be greater than 0")
    try:
        return run_demo(scenario=scenario, speed=speed, keep=keep, say=_say)
    except BlockingIOError as error:  # git, which prepares the project, could not be started
        raise ShortageError("process") from error


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # the demo continues if the reader has closed the pipe
        typer.echo(text)


def _examples() -> str:
    names = sorted(
        file.stem for file in (Path(__file__).parent.parent / "mock_api" / "scenarios").glob("*.toml")
    )
    quirks = [name.removeprefix("quirk-") for name in names if name.startswith("quirk-")]
    plain = [name for name in names if not name.startswith("quirk-")]
    return f"{', '.join(plain)}, or quirk-* (what other servers do: {', '.join(quirks)})"


def mock_api(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Scenario file (.toml or .json; `ralph help mock-api` describes it), or the name of an example: "
            f"{_examples()}."
        ),
    ],
    *,
    port: Annotated[int, option("0: any free port.", "PORT", min=0, max=65535)] = 0,
    record: Annotated[str | None, option("Append each request to this file, as JSON lines.", "PATH")] = None,
) -> int:
    """Serve a scripted model on 127.0.0.1, for tests and CI. The answers and the faults come from a file."""
    is_example = scenario in server.example_names() and not Path(scenario).exists()
    try:
        script = server.load_example(scenario) if is_example else server.load_scenario(Path(scenario))
        server.run_forever(
            script,
            port=port,
            record=Path(record) if record else None,
            ready=lambda listening: typer.echo(f"listening on {listening.base_url}"),
        )
    except server.ScenarioError as error:
        near = None if Path(scenario).exists() else nearest(scenario, server.example_names())
        raise wrong_value("SCENARIO", f"{error}{f'; did you mean {near}?' if near else ''}") from None
    except OSError as error:
        what = (
            f"{error.filename}: {error.strerror}"
            if error.filename
            else f"port {port}: {error.strerror or error}"
        )
        raise CannotError(f"cannot serve: {what}", Outcome.IO_ERROR) from None
    return 0


DEMO = typer_command("demo", demo)
MOCK_API = typer_command("mock-api", mock_api)
