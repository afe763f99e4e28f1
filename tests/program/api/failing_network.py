"""Makes name lookups or connections fail for a while inside a real `ralph` process. Real failures of this kind
cannot be arranged on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Ralph

_SITE = """
import errno, os, socket
from pathlib import Path

left = Path({left!r})
really_look_up = socket.getaddrinfo


class Socket(socket.socket):
    def connect(self, address):
        if fails("connect"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return super().connect(address)


def fails(what):
    kind, _, number = left.read_text().partition(" ")
    if kind != what or number == "0":
        return False
    left.write_text(f"{{kind}} {{int(number) - 1}}")
    return True


def look_up(host, *rest, **named):
    if fails("lookup"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return really_look_up("127.0.0.1" if host == b"gateway.test" else host, *rest, **named)


socket.getaddrinfo = look_up
socket.socket = Socket
"""


class FailingNetwork:
    """Makes `ralph` find its server under the name `gateway.test`. The failures that were ordered happen a number
    of times, and then no more.
    """

    def __init__(self, ralph: Ralph, directory: Path) -> None:
        self._left = directory / "left"
        self.will_fail("lookup", 0)
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE.format(left=str(self._left)))
        ralph.environment["PYTHONPATH"] = f"{site}:{ralph.environment['PYTHONPATH']}"

    def will_fail(self, what: str, times: int) -> None:
        """Orders failures. `what` is "lookup" (the host is unknown) or "connect" (the connection is not
        permitted).
        """
        self._left.write_text(f"{what} {times}")

    @property
    def failures_left(self) -> int:
        return int(self._left.read_text().partition(" ")[2])
