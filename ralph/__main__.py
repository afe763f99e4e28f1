"""The way in: answers `--version` at once, closes the process, and hands everything else to `cli`."""

# Nothing may be imported here, `__future__` included, that the interpreter has not loaded already: it could come from
# the working directory. `gc` is part of the interpreter.
import gc
import os
import sys


def main(core_limit: int | None = None) -> None:
    """Run ralph on `sys.argv` and exit with its code. `core_limit`: as `keep_memory_private` takes it."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        _tell_version()
    gc.disable()  # until a command begins: looking for garbage among what is loaded takes a twentieth of the start
    from ralph.machine import own_process  # noqa: PLC0415 - costs time that --version saves

    left_out = own_process.leave_working_directory_out(arguments)
    own_process.keep_memory_private(core_limit)
    _open_standard_streams()
    _die_silently_of_ctrl_c()
    try:
        from ralph.cli.app import run_cli  # noqa: PLC0415 - the same, and more of it
    except (OSError, MemoryError, ImportError) as error:
        _end_if_too_short(error)
        if left_out and isinstance(error, ModuleNotFoundError):
            _refuse_to_import(error.name, left_out)
        raise
    code = run_cli(arguments)
    # A thread that is still busy (a name lookup, output that nobody reads) must not delay the exit.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # a reader that left
        os._exit(code)
    os._exit(code)


def _tell_version() -> None:
    from ralph import __version__  # noqa: PLC0415 - loaded already

    try:
        os.write(1, f"ralph {__version__}\n".encode())
    except OSError:  # a reader that is gone does not want to know
        os._exit(0)
    os._exit(0)


def _refuse_to_import(module: str | None, left_out: list[str]) -> None:
    where = ", ".join(left_out)
    os.write(
        2,
        f"ralph: module {module} not found; PYTHONPATH names {where}, but ralph imports nothing from the working "
        "directory: install ralph elsewhere, or run it from another directory\n".encode(),
    )
    os._exit(78)  # Outcome.CONFIG, which cannot be imported either


def _end_if_too_short(error: BaseException) -> None:
    """Exit 75 where not even the modules can be loaded for want of memory or file descriptors: that passes."""
    import errno  # noqa: PLC0415 - built into the interpreter, so that no file can take its place

    words = str(error)  # an extension module that cannot be loaded gives no number
    if (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
        or any(os.strerror(number) in words for number in (errno.EMFILE, errno.ENOMEM))
    ):
        try:
            os.write(
                2, b"ralph: this machine has too little memory or too few file descriptors left to start\n"
            )
        finally:
            os._exit(75)


def _open_standard_streams() -> None:
    """A closed descriptor 0, 1 or 2 becomes /dev/null, or the next file opened would land there."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def _die_silently_of_ctrl_c() -> None:
    """Lets Ctrl-C end ralph as it ends any program, without a traceback, until the run catches signals
    itself.
    """
    import signal  # noqa: PLC0415 - see above

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the working directory first: a file named httpx.py there would get the key.
        del sys.path[0]
    main()
