"""The outcome of a git call that failed, from git's own words."""

from __future__ import annotations

from ralph.git.answer import GitAnswer, failure
from ralph.values.outcome import Outcome
from tests.rows import every_row

NO_RIGHTS = (
    "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n"
)


@every_row(
    ("said", "outcome", "told"),
    [
        ("fatal: write error: No space left on device\n", Outcome.IO_ERROR, "No space left on device"),
        (f"git@github.com: Permission denied (publickey).\n{NO_RIGHTS}", Outcome.AUTH, "Permission denied"),
        (f"Host key verification failed.\n{NO_RIGHTS}", Outcome.AUTH, "Host key verification failed"),
        (
            "fatal: unable to access 'https://h/': The requested URL returned error: 403\n",
            Outcome.AUTH,
            "403",
        ),
        (
            "fatal: unable to access 'https://h/': The requested URL returned error: 500\n",
            Outcome.API_UNAVAILABLE,
            "500",
        ),
        (
            "fatal: unable to access 'https://h/': The requested URL returned error: 429\n",
            Outcome.API_UNAVAILABLE,
            "429",
        ),
        (
            f"ssh: Could not resolve hostname h: Temporary failure in name resolution\n{NO_RIGHTS}",
            *(Outcome.API_UNAVAILABLE, "name resolution"),
        ),
        (
            f"kex_exchange_identification: Connection closed by remote host\n{NO_RIGHTS}",
            Outcome.API_UNAVAILABLE,
            "kex",
        ),
        (
            "error: RPC failed; curl 92 HTTP/2 stream 0 was not closed\nfatal: early EOF\n",
            Outcome.API_UNAVAILABLE,
            "RPC",
        ),
        (
            "error: cannot lock ref 'refs/heads/a': Unable to create '/r/refs/heads/a.lock': File exists.\n",
            *(Outcome.API_UNAVAILABLE, "cannot lock ref"),
        ),
        (
            "error: cannot lock ref 'refs/heads/a/b': 'refs/heads/a' exists; cannot create 'refs/heads/a/b'\n",
            *(Outcome.CONFIG, "'refs/heads/a' exists"),
        ),
        ("! [remote rejected] a -> a (protected branch hook declined)\n", Outcome.CONFIG, "protected branch"),
        (
            "remote: Repository not found.\nfatal: repository 'https://h/' not found\n",
            Outcome.CONFIG,
            "no such repository",
        ),
        ("fatal: detected dubious ownership in repository at '/r'\n", Outcome.CONFIG, "safe.directory '/r'"),
    ],
)
def test_gits_words_decide_whether_a_later_attempt_may_succeed(
    said: str, outcome: Outcome, told: str
) -> None:
    error = failure("/r", "push", GitAnswer(128, b"", said.encode()))
    assert error.outcome is outcome
    assert error.is_temporary == (outcome is Outcome.API_UNAVAILABLE)
    assert str(error).startswith("/r")
    assert told in str(error)
    assert "\n" not in str(error)


def test_a_password_in_an_address_is_not_shown() -> None:
    error = failure(
        "https://me:secret@h/x", "fetch", GitAnswer(128, b"", b"fatal: no 'https://me:secret@h/x'")
    )
    assert "secret" not in str(error)
