"""A client that receives a server's answer in pieces of any size."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import httpx

from ralph.values.servers import ANTHROPIC
from tests.api.harness import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.values.answer import Answer


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


class PieceClient:
    """A client whose transport answers in exactly these pieces. The pieces pass through the usual thread and
    parser.
    """

    def __init__(self, speaks: str = ANTHROPIC) -> None:
        """`speaks` is the API of the server."""
        self._pieces: list[bytes] = []
        self._content_type = ""
        self.rig = Rig("http://api.test", speaks=speaks, transport=httpx.MockTransport(self._respond))

    def receive(self, pieces: list[bytes], content_type: str = "text/event-stream") -> Answer:
        self._pieces, self._content_type = pieces, content_type
        return self.rig.send()

    def _respond(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": self._content_type}, stream=Pieces(self._pieces))


def split(data: bytes, at: list[int]) -> list[bytes]:
    """Cuts the bytes at these positions. Positions beyond the end count from the beginning again."""
    bounds = [0, *sorted(position % (len(data) + 1) for position in at), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(bounds)]
    return [piece for piece in pieces if piece]
