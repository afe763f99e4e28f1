"""The entry point of the program. Answers `--version` and a shell that completes a command line at once. For all other
commands, secures the process and then runs `cli`.
"""

# Nothing may be imported here, `__future__` included, that the interpreter has not loaded already and that is not built
# into it: it could come from the working directory.
import errno
import os
import sys

from ralph import __version__


def main(core_limit: int | None = None, parent_pid: int | None = None) -> None:
    """Runs ralph with the arguments in `sys.argv`, and ends the process with ralph's exit code.

    `core_limit` is passed to `process_start.keep_memory_private`, which explains it. If `parent_pid` is not None, this
    process ends when the process `parent_pid` ends.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"] or arguments == ["-v"]:
        _tell_version()
    from ralph.machine import own_process  # noqa: PLC0415 - costs time that --version saves

    left_out = own_process.leave_working_directory_out(arguments)
    own_process.know_home()
    if arguments[:1] == ["--complete"]:
        from ralph.cli.shell.answer import answer_shell  # noqa: PLC0415 - a shell asks for it

        os._exit(answer_shell(arguments[1:]))
    # Only now: a module of the standard library may not be looked for in the working directory.
    from ralph.machine import loading, process_start  # noqa: PLC0415 - not before the import path is clean

    if parent_pid is not None:
        process_start.end_with_parent(parent_pid)
    loading.put_off_garbage_collection()
    process_start.keep_memory_private(core_limit)
    if parent_pid is None:  # a loop that began has enough for its iterations
        process_start.count_descriptors()
    _open_standard_streams()
    process_start.take_usual_signals()
    try:
        from ralph.cli.command_line import run_cli  # noqa: PLC0415 - costs still more time that --version saves
    except (OSError, MemoryError, ImportError) as error:
        _end_if_too_short(error, process_start.why_too_few_descriptors())
        _refuse_to_import(error, left_out)
        raise
    try:
        code = run_cli(arguments)
    except ModuleNotFoundError as error:
        _refuse_to_import(error, left_out)
        raise
    # A thread that is still busy (a name lookup, output that nobody reads) must not delay the exit.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader of the output has closed it
        os._exit(code)
    os._exit(code)


def _tell_version() -> None:
    try:
        os.write(1, f"ralph {__version__}\n".encode())
    except BrokenPipeError:  # nobody reads the output
        os._exit(0)
    except OSError as error:
        os.write(2, f"ralph: cannot write to standard output: {error.strerror}\n".encode())
        os._exit(74)  # Outcome.IO_ERROR, which takes too long to import
    os._exit(0)


def _refuse_to_import(error: BaseException, left_out: list[str]) -> None:
    """Exits with code 78 if a module was not found and `left_out` is not empty. `left_out` lists directories from
    which ralph imports nothing. The missing module may be in one of them. Returns in all other cases.
    """
    if not left_out or not isinstance(error, ModuleNotFoundError):
        return
    where = ", ".join(left_out)
    os.write(
        2,
        f"ralph: module {error.name} not found; PYTHONPATH names {where}, but ralph imports nothing from the working "
        "directory: install ralph elsewhere, or run it from another directory\n".encode(),
    )
    os._exit(78)  # Outcome.CONFIG, which cannot be imported either


def _end_if_too_short(error: BaseException, too_few: str | None) -> None:
    """Exits with code 75 if memory or file descriptors ran out while modules were loaded. `error` is the exception
    that was raised. Code 75 says that the failure is temporary. Returns after any other error. `too_few` is that of
    `why_too_few_descriptors`. If it is not None, exits with 78, because the limit stays.
    """
    words = str(error)  # the error of an extension module that cannot be loaded has no errno
    if (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
        or any(os.strerror(number) in words for number in (errno.EMFILE, errno.ENOMEM))
    ):
        short = "this machine has too little memory or too few file descriptors left to start"
        try:
            os.write(2, f"ralph: {too_few or short}\n".encode())
        finally:
            os._exit(75 if too_few is None else 78)


def _open_standard_streams() -> None:
    """Opens /dev/null in place of each standard stream (descriptor 0, 1 or 2) that is closed.

    Otherwise, a file that is opened later would get this number. Descriptor 1 is opened only for reading. So a write
    to standard output fails (EBADF), in the same way as a write to the closed stream.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # Takes the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if fd == 1 else os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - lives as long as the process


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the working directory first in sys.path: a file named httpx.py there would get the key.
        del sys.path[0]
    main()
