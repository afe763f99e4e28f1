"""The answer of a git call, and the error that is made of a call that failed. Nothing here contains a credential."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.running_command import readable_text
from ralph.values.outcome import CannotError, Outcome
from ralph.values.redaction import MARK, Redactor

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_COMPLAINT_CHARS = 500
_LINES_OF_A_COMPLAINT = 3
_NOISE = re.compile(
    r"hint:|warning:|To |Please make sure you have the correct access|and the repository exists\.|Done$"
    r"|Errors logged to |Use `git lfs logs"
)
_COMPLAINT = re.compile(r"fatal:|error:")
# What these repeat of a file may be a line of one that commands may not read, to which a link or a setting leads.
_REPEATED_LAST = re.compile(
    r"((?:bad shallow line|bad graft data|alternate object path|(?:unexpected|unterminated) line in [^:]*|invalid line \d+): "
    r"|(?:bad|graph) signature ).*"
)
_REPEATED_FIRST = re.compile(
    r"^(error: |fatal: )?.*(?= (?:does not exist; check |not a hash$|is not a valid attribute name: |not allowed: .*:\d+$))"
)
_USER_IN_URL = re.compile(r"://[^\s/@'\"]+@")
# The user of SSH is not a credential, and a message of git is not clear without it.
_USER_OF_HTTP = re.compile(r"(?i)(https?://)[^\s/@'\"]+@")

# Parts of git's messages in the C locale, in lower case. The first one that a message has decides.
_REASONS = """
IO_ERROR: no space left on device | disk quota exceeded | read-only file system
IO_ERROR: failed to write new configuration file | unable to write new index file
AUTH: authentication failed | could not read username | could not read password | permission denied (
AUTH: terminal prompts disabled | returned error: 401 | returned error: 403 | invalid username or | access denied
AUTH: host key verification failed | authorization error:
API_UNAVAILABLE: could not resolve host | couldn't resolve host | name resolution | network is unreachable
API_UNAVAILABLE: no route to host | connection refused | connection timed out | connection reset | failed to connect to
API_UNAVAILABLE: couldn't connect to | operation timed out | connection closed by | early eof | rpc failed
API_UNAVAILABLE: unexpected disconnect | the remote end hung up unexpectedly | returned error: 429 | returned error: 5
API_UNAVAILABLE: operation too slow | ssl_error_syscall | empty reply from server | broken pipe
API_UNAVAILABLE: fatal error: server error | rate limit exceeded | no such host | i/o timeout
API_UNAVAILABLE: kex_exchange_identification | .lock': file exists
API_UNAVAILABLE: resource temporarily unavailable | cannot allocate memory | too many open files
"""
_MISSING = ("does not appear to be a git repository", "repository not found", "' not found")


class CheckoutError(CannotError):
    """Git or the file system refused an operation on a repository. The message contains no credentials."""

    @property
    def is_temporary(self) -> bool:
        """Whether a later attempt may succeed, because the network or the machine was the reason."""
        return self.outcome is Outcome.API_UNAVAILABLE


class GitAnswer(Struct, frozen=True):
    status: int
    output: bytes
    errors: bytes = b""
    """Git's standard error. For a call to a remote, its standard output comes first: `push --porcelain` tells refusals there."""

    def complaint(self) -> str:
        """The last meaningful lines of git's error output, joined to one line. Credentials are removed."""
        lines = [line.strip() for line in readable_text(self.errors)[0].replace("\t", " ").splitlines()]
        lines = [_REPEATED_FIRST.sub(r"\1...", _REPEATED_LAST.sub(r"\1...", line)) for line in lines]
        telling = [line for line in lines if line and not _NOISE.match(line)]
        refused = [line for line in telling if line.startswith("! ")]  # lines of `push --porcelain`
        telling = [line for line in telling if line not in refused]
        ends = [number for number, line in enumerate(telling, start=1) if _COMPLAINT.match(line)]
        last = telling[: ends[-1]] if ends else telling
        said = "; ".join([*refused, *last[-_LINES_OF_A_COMPLAINT:]])
        masked = Redactor().redact_all(_USER_OF_HTTP.sub(rf"\1{MARK}@", said))
        if len(masked) > _MOST_COMPLAINT_CHARS:
            masked = masked[:_MOST_COMPLAINT_CHARS] + "..."
        return masked or f"it ended with {self.status}"


def failure(repository: str, command: str, answer: GitAnswer, *, is_named: bool = True) -> CheckoutError:
    """Makes the error for a git command that failed. If the cause is known, the error contains advice. `repository`
    is an address or a directory. If `is_named` is False, the caller's messages need no name of the repository.
    """
    complaint = answer.complaint()
    said = answer.errors.decode("utf-8", "replace").lower()
    subject = f"{without_user(repository)}: " if is_named else ""
    if "dubious ownership" in said:
        return CheckoutError(
            f"{without_user(repository)} belongs to another user, and git refuses to work in it; "
            f"if you trust it: git config --global --add safe.directory '{repository}'"
        )
    if "refusing to update checked out branch" in said:
        return CheckoutError(
            f"{subject}the branch is checked out there, and git does not push to such a branch; "
            "push to another branch, or to a bare repository"
        )
    if any(part in said for part in _MISSING):
        return CheckoutError(
            f"{subject}there is no such repository, or it may not be read (git {command}: {complaint})"
        )
    rows = (line.partition(": ") for line in _REASONS.split("\n")[1:-1])
    reasons = (Outcome[name] for name, _, parts in rows if any(part in said for part in parts.split(" | ")))
    outcome = next(reasons, Outcome.CONFIG)
    return CheckoutError(f"{subject}git {command}: {complaint}", outcome)


def shown(paths: Sequence[str], most: int = 3) -> str:
    """The first `most` names and the number of the others, as text for the user. Unprintable ones are escaped."""
    names = [path if path.isprintable() else ascii(path) for path in paths[:most]]
    return ", ".join(names) + (f" and {len(paths) - most} more" if len(paths) > most else "")


def without_user(repository: str) -> str:
    """The address of a repository without a user name and a password."""
    return _USER_IN_URL.sub("://", repository)
