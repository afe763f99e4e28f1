"""Measures the size in bytes of the first request for the prompt "hi" in an empty directory, in total and by part."""

from __future__ import annotations

import json

from benchmarks.harness import MockProcess, ralph, workplace
from ralph.mock_api import Scenario, Turn

TARGET_BYTES = 4700


def main() -> None:
    with MockProcess(Scenario([Turn("Done.")]), keep_bodies=1) as server, workplace(server.base_url) as place:
        place.measure(ralph("run", "hi"))
        (request,) = server.requests()
    fields = json.loads(request.body or b"")
    print("\nFirst request")
    print(f"{'':44}{'bytes':>8}")
    sizes = {f"tool {tool['name']}": _bytes_of(tool) for tool in fields["tools"]}
    sizes["system prompt"] = _bytes_of(fields["system"])
    sizes["messages"] = _bytes_of(fields["messages"])
    sizes["rest"] = request.body_bytes - sum(sizes.values())
    for name, size in sizes.items():
        print(f"{name:44}{size:8}")
    print(f"{'whole body':44}{request.body_bytes:8}  under {TARGET_BYTES}")


def _bytes_of(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
