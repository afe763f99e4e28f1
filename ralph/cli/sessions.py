"""The commands of `ralph sessions`, with their options and their help."""

from typing import Annotated, Literal

import typer

from ralph.cli.typer_command import absolute, command_group, existing_directory, made, option
from ralph.sessions import command

SessionId = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID]",
        help="The id of the session or its first characters, or its title. Default: the last session of this directory.",
    ),
]

SessionDir = Annotated[
    str | None,
    option(
        "Look in this directory instead of your state directory.",
        "DIR",
        "--session-dir",
        reads=existing_directory,
    ),
]

AllFlag = Annotated[
    bool, option("List the sessions of all directories, with their directories.", spelled="--all -a")
]
ListFormat = Annotated[Literal["text", "json"], option("text: one line per session. json: one list.")]

sessions = command_group(
    "sessions",
    "Look at what earlier runs did.\n\n"
    "Every run keeps a journal: the model's text, each call and its result, each retry, the outcome. "
    "The commands also work during a run, and on a damaged journal.\n\n"
    "ralph -c resumes the last session of this directory, ralph --resume ID any session.",
)


@sessions.command("ls", short_help="List the sessions of this directory, the newest first.")
def list_(*, all_: AllFlag = False, session_dir: SessionDir = None, format_: ListFormat = "text") -> int:
    """List sessions: id, time of the last write, outcome, turns, cost, title or the first words of the task.

    The outcome is the outcome of the last run, or one of these: running, killed (the last run has no end, and its
    process is gone), not delivered (its result did not reach the reader), damaged, unreadable, empty, newer format. A
    cost of ? is unknown. For a fork, the turns and the cost of the
    original session are not included.
    """
    return command.list_sessions(
        command.store_in(absolute(session_dir)), of_all=all_, is_json=format_ == "json"
    )


@sessions.command(short_help="Show the story of one session.")
def show(session_id: SessionId = None, *, session_dir: SessionDir = None) -> int:
    """Show one session's story: prompts, the model's text, calls, shortened results, retries, outcomes.

    If the journal is damaged (exit 74), the story ends at the damage.
    """
    return command.show_session(command.store_in(absolute(session_dir)), session_id, absolute(session_dir))


@sessions.command(short_help="Write a whole session as Markdown or JSON.")
def export(
    session_id: SessionId = None,
    *,
    format_: Annotated[
        Literal["md", "json"], option("md: a transcript to read. json: one object for programs.")
    ] = "md",
    session_dir: SessionDir = None,
) -> int:
    """Write a whole session to standard output, unabridged.

    The JSON object has the messages as they were sent to the API, the runs, the events and the totals.
    """
    return command.export_session(
        command.store_in(absolute(session_dir)), session_id, is_json=format_ == "json"
    )


@sessions.command(short_help="Find the sessions in which a text occurs.")
def search(
    words: Annotated[str, typer.Argument(metavar="TEXT", help="The text, in upper or lower case.")],
    *,
    all_: AllFlag = False,
    session_dir: SessionDir = None,
) -> int:
    """Find a text in titles, prompts, answers, calls and results, and list its sessions with the first matching lines.

    Without a match the list is empty (exit 0).
    """
    return command.search_sessions(command.store_in(absolute(session_dir)), words, of_all=all_)


@sessions.command(short_help="Delete sessions.")
def rm(
    session_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="The ids of sessions or their first characters, or titles."),
    ],
    *,
    session_dir: SessionDir = None,
) -> int:
    """Delete sessions: their journals, and the `.torn` files with lines that were cut off.

    If one of the names is wrong, nothing is deleted (exit 2). A session that a run is using is not deleted (exit 78).
    """
    return command.remove_sessions(command.store_in(absolute(session_dir)), session_ids)


COMMAND = made(sessions)
