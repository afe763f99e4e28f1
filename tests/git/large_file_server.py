"""The server's side of Git LFS, for servers of git in tests (Git LFS specification: docs/api/batch.md, basic-transfers.md)."""

from __future__ import annotations

import json


class LargeFileServer:
    def __init__(self) -> None:
        self.status = 200
        """The status of all answers."""
        self.kept: dict[str, bytes] = {}
        """The large files by their ids."""

    def answer(self, command: str, url: str, body: bytes) -> bytes:
        """The answer to a request. The address `url` has `/info/lfs/` in it."""
        above, _, name = url.rpartition("/")
        if command == "GET":
            return self.kept[name]
        if command == "PUT":
            self.kept[name] = body
            return b"{}"
        asked = json.loads(body)
        for one in asked["objects"]:
            if asked["operation"] == "download" or one["oid"] not in self.kept:
                one["actions"] = {asked["operation"]: {"href": f"{above}/{one['oid']}"}}
        return json.dumps({"transfer": "basic", "objects": asked["objects"]}).encode()
