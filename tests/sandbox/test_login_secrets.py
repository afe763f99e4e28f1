"""Tickets, mail and the runtime directory of the user's login lie outside the home, and neither commands nor Read may read
them.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from ralph.places import table
from ralph.places.gather import gather_places
from tests.places.test_one_table import tools_in
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tools.conftest import Tools


# A file in a directory outside the home and of /tmp, and the variable that names it or its folder.
NAMED = {
    "a file of tickets": ("krb5", {"KRB5CCNAME": "FILE:{krb5}"}),
    "a file of tickets without its kind": ("krb5", {"KRB5CCNAME": "{krb5}"}),
    "a directory of tickets": ("tickets/tkt", {"KRB5CCNAME": "DIR:{tickets}"}),
    "one file in it": ("tickets/tkt", {"KRB5CCNAME": "DIR::{tickets/tkt}"}),
    "a key of a service": ("keytab", {"KRB5_CLIENT_KTNAME": "WRFILE:{keytab}"}),
    "a proxy of a certificate": ("x509", {"X509_USER_PROXY": "{x509}"}),
    "X authority": ("xauth", {"XAUTHORITY": "{xauth}"}),
    "a mailbox": ("mbox", {"MAIL": "{mbox}"}),
    "a folder of mail": ("mails/new/1", {"MAILDIR": "{mails}"}),
    "what is in the runtime directory": ("run/krb5cc", {"XDG_RUNTIME_DIR": "{run}"}),
    "further below it": ("run/gvfs/x", {"XDG_RUNTIME_DIR": "{run}"}),
}


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/var/tmp") as made:
        for name in ("home", "work", "tickets", "mails/new", "run/gvfs"):
            Path(made, name).mkdir(parents=True)
        Path(made, "run").chmod(0o700)
        yield Path(made)


def tools_at(level: str, place: Path, **variables: str) -> Iterator[Tools]:
    environment = {"HOME": f"{place}/home", "PATH": os.environ["PATH"], **variables}
    yield from tools_in(place / "work", environment, level)


def why_not_read(place: Path, path: object, work: str = "work", **variables: str) -> object:
    return gather_places([f"{place}/{work}"], {"HOME": f"{place}/home", **variables}).why_not_read(str(path))


def outputs(tools: Tools, file: Path) -> str:
    return "\n".join(
        str(tools.call(name, arguments))
        for name, arguments in (("Bash", {"command": f"cat {file}"}), ("Read", {"file_path": str(file)}))
    )


@every_row(("name", "variables"), NAMED.values())
def test_what_a_variable_of_the_login_names_is_not_read(name, variables, place) -> None:
    """tests/places/test_one_table.py has what commands and Read do with such a place."""
    named = {
        variable: value.replace("{", f"{place}/").replace("}", "") for variable, value in variables.items()
    }
    assert why_not_read(place, place / name, **named)
    assert why_not_read(place, place / name) is None, "nothing else forbids it"


def test_a_runtime_directory_that_others_may_use_closes_nothing(place) -> None:
    (place / "run").chmod(0o755)
    for named in (f"{place}/run", "/tmp", str(place)):
        assert why_not_read(place, f"{place}/run/x", XDG_RUNTIME_DIR=named) is None


@pytest.mark.parametrize(
    "path",
    "/tmp/krb5cc_{0} /tmp/x509up_u{0} /tmp/bt_u{0} /run/user/1000/krb5cc /run/user/0 /var/mail/me "
    "/etc/krb5/user/1/client.keytab /var/spool/cron/me".split(),
)
def test_the_usual_places_of_tickets_mail_and_the_runtime_directory_are_not_read(place, path) -> None:
    assert why_not_read(place, path.format(os.getuid()))


def test_work_in_the_runtime_directory_is_work(place) -> None:
    (place / "run/work").mkdir()
    runtime = {"work": "run/work", "XDG_RUNTIME_DIR": f"{place}/run"}
    assert why_not_read(place, f"{place}/run/work/a", **runtime) is None
    assert why_not_read(place, f"{place}/run/krb5cc", **runtime)
    places = gather_places(
        [f"{place}/run/work"], {"HOME": f"{place}/home", "XDG_RUNTIME_DIR": f"{place}/run"}
    )
    assert places.open_of([f"{place}/run/work"])


@pytest.mark.parametrize(("more", "is_got_later"), [("_abc", False), ("", False), ("", True)])
def test_a_ticket_in_tmp_is_not_read(place, monkeypatch, more, is_got_later) -> None:
    with TemporaryDirectory(prefix="ralph-test-", dir="/tmp") as made:
        # With another secret place in /tmp, all rules are made again after each change there.
        monkeypatch.setenv("TMPDIR", str(place))
        monkeypatch.setitem(table.PATTERNS, "tickets", f"{made}-*")
        file = Path(f"{made}-{os.getuid()}{more}")
        try:
            for tools in tools_at("landlock", place):
                if is_got_later:
                    assert "No such file" in outputs(tools, file)
                file.write_text("canary")
                assert "canary" not in outputs(tools, file)
        finally:
            file.unlink()


def test_a_link_among_the_tickets_closes_nothing(place, monkeypatch) -> None:
    """In /tmp it may be another user's."""
    monkeypatch.setitem(table.PATTERNS, "tickets", f"{place}/krb5cc_*")
    for more in ("", "_x"):
        (place / f"krb5cc_{os.getuid()}{more}").symlink_to("/usr")
    assert why_not_read(place, "/usr/bin/git") is None
