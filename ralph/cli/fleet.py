"""The commands of `ralph fleet`, with their options and their help. Nothing of the fleet's libraries is imported before
a command runs, and only `work` imports the engine.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.loop_records import OpenFlag, PageFile
from ralph.cli.run import COMMAND as RUN
from ralph.cli.run import RunLine
from ralph.cli.settings_command import check_settings
from ralph.cli.typer_command import COUNT, absolute, command_group, made, option, run_directories
from ralph.git.runner import git_program
from ralph.machine.waiter import StopEvent
from ralph.output.result_file import write_result_file
from ralph.output.standard_streams import ReaderLeftError, print_bytes
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.setting import DURATION

if TYPE_CHECKING:
    from ralph.fleet.command import Fleet

_LONGEST_WAIT_S = 60.0
"""A command that nothing waits for gives up after this time: the store's address may be wrong."""
_LIBRARIES = ("dbos", "psycopg", "sqlalchemy")
_NEEDS_EXTRA = (
    "ralph fleet needs the extra fleet: pip install '.[fleet]' in ralph's clone, with ralph's Python"
)


Store = Annotated[
    str | None,
    option(
        "The store: postgresql://USER@HOST:PORT/DATABASE. Default: RALPH_FLEET_DB, else a SQLite file in the state "
        "directory.",
        "URL",
        "--db",
    ),
]
SetName = Annotated[str | None, option("The set of the jobs.", "NAME", "--set")]
JsonFlag = Annotated[bool, option("Print one JSON object.", spelled="--json")]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="The id of the job, or SET/ID.")]
SomeJobs = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="The ids of the jobs, or SET/ID.")
]
SomeSets = Annotated[
    list[str] | None, typer.Argument(metavar="[SET]...", help="The names of the sets. Default: all.")
]

fleet = command_group(
    "fleet",
    "Spread many jobs over many machines.\n\n"
    "A job is a prompt, a git repository and limits. A file of jobs is a set. Workers take the jobs from a store: "
    "a SQLite file for one machine, Postgres for several. Each job's work is pushed as the branch ralph/ID.\n\n"
    "ralph fleet submit jobs.jsonl && ralph fleet work -j 4 --until-done",
)


@fleet.command(short_help="Add the jobs of a file to a set.")
def submit(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The jobs: .jsonl with one object per line, or .toml."),
    ],
    *,
    set_name: Annotated[
        str | None, option("The set's name. Default: the file's name.", "NAME", "--set")
    ] = None,
    concurrency: Annotated[
        int | None, option("Run at most this many jobs at once, over all workers.", "N", reads=COUNT)
    ] = None,
    per_host: Annotated[
        int | None,
        option(
            "Run at most this many jobs at once whose repositories are on the same git host.",
            "N",
            reads=COUNT,
        ),
    ] = None,
    rate: Annotated[
        str | None, option("Start jobs at most at this rate, such as 50/min or 5/s.", "RATE")
    ] = None,
    max_budget_usd: Annotated[
        float | None, option("Spend at most this many dollars on all jobs together.", "X")
    ] = None,
    max_attempts: Annotated[
        int | None, option("Try each job at most this many times. Default: 5.", "N", reads=COUNT)
    ] = None,
    db: Store = None,
) -> int:
    """Add the jobs of a file to a set.

    The set and a job's id are the job's key: submitting a file twice adds nothing, and the same key with
    different content is refused (exit 2). Limits of the command line win over those of the file.

    Exit codes: 0 added or known, 2 the file has an error, 77 or 78 the store cannot be used.
    """
    limits = {
        "concurrency": concurrency,
        "per_host": per_host,
        "rate": rate,
        "max_budget_usd": max_budget_usd,
        "max_attempts": max_attempts,
    }
    with _opened(db) as store:
        return store.submit(file, set_name, limits, check_job_options)


@fleet.command(short_help="Work on the jobs of the store.")
def work(
    *,
    slots: Annotated[
        int, option("Run this many jobs at once on this machine.", "N", "--jobs -j", reads=COUNT)
    ] = 1,
    until_done: Annotated[bool, option("End when all jobs have ended, instead of waiting for more.")] = False,
    drain: Annotated[
        float,
        option(
            "After SIGTERM, give running jobs this time to end, then hand them back at a checkpoint. Default: 20s.",
            "TIME",
            reads=DURATION.decoded,
            show_default=False,
        ),
    ] = 20.0,
    db: Store = None,
) -> int:
    """Work on the jobs of the store, on as many machines as you start it.

    Jobs of a worker that is gone are taken over by the others, from their last checkpoint. SIGTERM or Ctrl-C drains;
    a second signal ends at once.
    """
    # Without git, each job would end for good within a second.
    git_program(os.environ, ())
    with _opened(db, begins_after=True, most_wait_s=None) as store:
        store.look_before_work(until_done=until_done)
        database, tell = store.database, store.console.tell
    with _extra():
        from ralph.fleet import worker  # noqa: PLC0415 - not needed for --help

    options = worker.WorkOptions(
        database=database,
        environment=os.environ,
        tell=tell,
        slots=slots,
        until_done=until_done,
        drain_s=drain,
    )
    return worker.work(options)


@fleet.command("ls", short_help="List the sets, and the jobs of one set.")
def list_(
    set_name: Annotated[
        str | None, typer.Argument(metavar="[SET]", help="List the jobs of this set. Default: all sets.")
    ] = None,
    *,
    json_: JsonFlag = False,
    db: Store = None,
) -> int:
    """List the sets. The jobs of a set are listed if you name the set, or if there is only one.

    A job's state is waiting (for the jobs named in `after`), queued, running, cancelling, done, exit N (it ended with
    this exit code), cancelled, or blocked (a job named in `after` failed). TIME is how long it has run, or `in 5m` if
    its next attempt begins then. With --json, all jobs are listed.
    """
    with _opened(db) as store:
        return store.list_(set_name, is_json=json_)


@fleet.command(short_help="Show everything that is known about a job.")
def show(job: OneJob, *, set_name: SetName = None, db: Store = None) -> int:
    """Show one job: its state, repository, branch, cost, attempts and last answer."""
    with _opened(db) as store:
        return store.show(job, set_name)


@fleet.command(short_help="Print the log of a job.")
def logs(
    job: OneJob,
    *,
    follow: Annotated[bool, option("Keep printing new lines until the job ends.", spelled="-f")] = False,
    set_name: SetName = None,
    db: Store = None,
) -> int:
    """Print the log of a job: what ralph printed while it worked, on whichever machines. Works while the job runs, too."""
    with _opened(db, most_wait_s=None if follow else _LONGEST_WAIT_S) as store:
        return store.logs(job, set_name, is_followed=follow)


@fleet.command(short_help="Cancel jobs. Their processes end within 10 s.")
def cancel(
    jobs: SomeJobs = None,
    *,
    all_: Annotated[
        bool, option("Cancel all jobs: of the set named by --set, else of all sets.", spelled="-a")
    ] = False,
    set_name: SetName = None,
    db: Store = None,
) -> int:
    """Cancel jobs. Waits up to 10 s until the workers have stopped those that run.

    Exit codes: 0 all are cancelled and stopped, 2 no such job, 75 a worker did not answer (it is named).
    """
    if bool(jobs) == all_:
        raise UsageError("name the jobs to cancel, or give --all" + (", not both" if jobs else ""))
    with _opened(db) as store:
        return store.cancel(jobs or None, set_name)


@fleet.command(short_help="Run ended jobs again.")
def retry(
    jobs: SomeJobs = None,
    *,
    failed: Annotated[
        bool, option("Retry all jobs that did not end with 0: of the set named by --set, else of all sets.")
    ] = False,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Discard work that a machine keeps because it was not delivered, and start over.",
        ),
    ] = False,
    set_name: SetName = None,
    db: Store = None,
) -> int:
    """Start another attempt of jobs that have ended. Jobs that were blocked by a failed one wait again.

    Work that was not delivered is delivered first, by the machine that keeps it (`ralph fleet show`), and no
    model is asked if only the delivery had failed.
    """
    if bool(jobs) == failed:
        raise UsageError("name the jobs to retry, or give --failed" + (", not both" if jobs else ""))
    with _opened(db) as store:
        return store.retry(jobs or None, set_name, discards=discard)


@fleet.command(short_help="Wait until all jobs have ended.")
def wait(
    sets: SomeSets = None,
    *,
    json_: JsonFlag = False,
    db: Store = None,
) -> int:
    """Wait until all jobs have ended. The exit code is the worst of the jobs' exit codes.

    From the worst to the best: 70, 74, 77, 78, 69, 2, 4, 1, 3, 124, 75, 128+n, 0.
    """
    with _opened(db, most_wait_s=None) as store:
        return store.wait(tuple(sets or ()), is_json=json_)


@fleet.command(short_help="Write one HTML page about all jobs.")
def report(
    sets: SomeSets = None, *, output: PageFile = None, open_: OpenFlag = False, db: Store = None
) -> int:
    """Write one HTML page about all jobs of the store, or of these sets, the worst jobs first.

    The page says what failed and why, what it cost, which machines worked on what, and how to continue. It needs
    no network and runs only its own script. Works while the jobs run, too.

    Exit codes: 0 written, 2 no such set, or no place for the page, 74 the page cannot be written.
    """
    with _opened(db) as store:
        from ralph.pages.fleet_page import write_fleet_report  # noqa: PLC0415 - not needed for --help

        return write_fleet_report(
            store, sets or (), absolute(output), is_opened=open_, is_store_named=db is not None
        )


@fleet.command(short_help="Write jobs for another scheduler.")
def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The jobs file.", show_default=False)],
    *,
    format_: Annotated[Literal["github-matrix", "kubernetes", "slurm", "parallel"], option("The scheduler.")],
    output: Annotated[
        str | None, option("Write to this file. Default: standard output.", "FILE", "-o")
    ] = None,
    set_name: SetName = None,
) -> int:
    """Write jobs for another scheduler: a GitHub workflow, a Kubernetes Job, a Slurm array, or GNU parallel.

    The jobs then need neither a store nor a worker. A limit that the scheduler cannot keep is refused (exit 2). If a job
    ends with 75, the scheduler runs it again.
    """
    from ralph.fleet import export, job_file  # noqa: PLC0415 - not needed for --help

    read = job_file.read_jobs(file, set_name, environment=os.environ, check_options=check_job_options)
    text = export.export(read.jobs, read.limits, format_, read.name).encode()
    target = absolute(output)
    if target is None or target == "-":
        print_bytes(text)
    else:
        try:
            write_result_file(target, text, run_directories(None))
        except OSError as error:
            raise CannotError(f"cannot write {target}: {error.strerror}", Outcome.IO_ERROR) from None
    return 0


@fleet.command(short_help="Do one job of an exported file.")
def job(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The job, as in an exported file.", show_default=False),
    ],
    *,
    set_name: Annotated[str, option("The set of the job.", "NAME", "--set", show_default=False)],
    directory: Annotated[
        str, option("Keep checkouts and sessions below this directory.", "DIR", "--dir", show_default=False)
    ],
) -> int:
    """Do one job of an exported file: a checkout, a run or a loop, a commit, a push. Exported files call it.

    It needs neither a store nor a worker. Called again after 75, it resumes the session in the same checkout. If
    RALPH_GIT_TOKEN is set, git gets it for https://$RALPH_GIT_HOST (github.com). Git sees neither it nor any key in
    its environment.

    Exit codes: those of the run or the loop; 74 if the branch has commits of somebody else, 75 if the repository cannot be
    reached, 78 if the job cannot be done here.
    """
    from ralph.fleet.exported_job import do_job_in_file  # noqa: PLC0415 - not needed for --help

    place = absolute(directory)
    assert place is not None  # noqa: S101 - the option has a value
    return do_job_in_file(file, set_name, Path(place), os.environ, _say)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def _extra() -> Iterator[None]:
    """Turns the lack of one of the fleet's libraries into one line."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _LIBRARIES:
            raise CannotError(_NEEDS_EXTRA) from None
        raise


@contextmanager
def _opened(
    db: str | None, *, begins_after: bool = False, most_wait_s: float | None = _LONGEST_WAIT_S
) -> "Iterator[Fleet]":
    """The store. The first signal ends the wait for it, and then the command with 128 + the signal's number. With
    `begins_after`, a signal that came while nothing waited counts too, before the work that follows begins.
    """
    with _extra():
        from ralph.fleet.command import Fleet  # noqa: PLC0415 - not needed for --help
        from ralph.fleet.database import WaitStoppedError  # noqa: PLC0415 - not needed for --help
    stop = StopEvent()
    received: list[int] = []

    def end_wait(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        # The next one ends the process at once.
        signal.signal(number, signal.SIG_DFL)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end_wait)
    try:
        with closing(Fleet(db, os.environ, stop, most_wait_s=most_wait_s)) as store:
            yield store
    except (KeyboardInterrupt, WaitStoppedError):
        raise typer.Exit(128 + (received[0] if received else signal.SIGINT)) from None
    except ReaderLeftError:
        raise typer.Exit(0) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if begins_after and received:
        raise typer.Exit(128 + received[0])


COMMAND = made(fleet)


# --- The field `options` of a job: words of the command line of `ralph run` or `ralph loop`. The fleet sets many options itself.

_OWN_FIELDS = """
until model base_url max_turns max_iterations max_time max_budget_usd sandbox prompt prompt_file
""".split()
_FIELDS = {name: name for name in _OWN_FIELDS} | {"pass_env": "env"}
"""Parameters that are fields of a job, and the names of these fields."""
_FLEETS = frozenset(
    """
    resume continue_ fork_session session_id session_dir no_session_persistence result_file output_format input_format
    include_partial_messages include_hook_events replay_user_messages permission_prompt_tool directory metrics_file
    debug_file status json_ watch push report iteration
    """.split()
)
"""Parameters that the worker sets, or that make no sense where nobody looks."""


def check_job_options(words: Sequence[str], is_loop: bool) -> None:
    """Raises UsageError if a worker could not use the words as options. Whether a file exists is not checked, because
    only the worker has it.
    """
    if "--" in words:
        raise UsageError("-- ends the options, and the fleet has more to add")
    lines, typed = (LOOP if is_loop else RUN).read(words)
    for one in typed.given:
        if one.name in _FIELDS:
            raise UsageError(f"{one.spelling} is the job's field {_FIELDS[one.name]}")
        if one.name in _FLEETS:
            raise UsageError(f"{one.spelling} cannot be set for a job: the fleet sets it")
    for line in lines:
        if isinstance(line, RunLine):
            check_settings(line.flags)
