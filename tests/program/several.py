"""Settings with several targets, and tools to tell their keys apart."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Fault, Step
from tests.api.harness import http_answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Finished, Ralph

DOWN = Step(fault=Fault(status=529), repeat="forever")
QUICKLY = {"policy": "custom", "base_delay_s": 0.01, "max_retries": 2}
"""Two retries that hardly wait."""


def settings(ralph: Ralph, *targets: dict[str, Any], **retry: Any) -> Path:
    """Writes a settings file for `--config`. It counts as written by the user, so it may name servers and keys."""
    path = ralph.cwd.parent / "targets.toml"
    tables = ["[retry]", *(f"{key} = {json.dumps(value)}" for key, value in (retry or QUICKLY).items())]
    for target in targets:
        tables += ["[[targets]]", *(f"{key} = {json.dumps(value)}" for key, value in target.items())]
    path.write_text("\n".join(tables))
    return path


def at(name: str, base_url: str, model: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "model": model or f"model-{name}", "base_url": base_url, **more}


def run(ralph: Ralph, path: Path, *arguments: str) -> Finished:
    return ralph("hi", "--config", str(path), "--output-format", "stream-json", *arguments)


def keys_of(requests: list[bytes]) -> list[str]:
    """The API key in each request."""
    found = [re.search(rb"\r\nx-api-key: ([^\r]+)", request, re.IGNORECASE) for request in requests]
    return [match[1].decode() if match else "" for match in found]


def refusal(status: str, error_type: str, headers: str = "", says: str = "no") -> bytes:
    body = {"type": "error", "error": {"type": error_type, "message": says}}
    return http_answer(json.dumps(body).encode(), "application/json", status, headers)
