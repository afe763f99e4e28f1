"""A credential in a proxy's URL, with or without a password, must not reach a command, the API or a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ralph.mock_api import Turn
from tests.program.model_answers import bash, calls

TOKEN = "canary-0f3a-token"
QUOTED = TOKEN.replace("a", "%61")
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def everything_written(ralph, ran, server) -> str:
    files = [path for path in Path(ralph.environment["HOME"]).rglob("*") if path.is_file()]
    told = [request.body.decode() for request in server.requests]
    return "\n".join([ran.stdout, ran.stderr, *told, *(path.read_text() for path in files)])


@pytest.mark.parametrize(
    "url",
    [
        f"http://{TOKEN}@proxy.test:3128",
        f"{TOKEN}@proxy.test:3128",
        f"http://me:{QUOTED}@proxy.test",
        f"{QUOTED}:@p",
    ],
)
def test_a_credential_of_a_proxy_reaches_nobody(ralph, serve, url) -> None:
    ralph.environment |= dict.fromkeys(NAMES, url) | {"PIP_PROXY": url, "CURL_OPTIONS": f"--proxy {url}"}
    forms = [form for form in (TOKEN, QUOTED) if form == TOKEN or form in url]
    (ralph.cwd / "notes.txt").write_text(f"plain {' '.join(forms)}\n")
    look = bash("env | sort | tee seen.txt; cat notes.txt")
    server = serve(
        look, calls(("Grep", {"pattern": "plain", "output_mode": "content"})), Turn(f"It is {TOKEN}.")
    )
    ran = ralph("go", "--output-format", "stream-json")
    assert ran.code == 0, ran.stderr
    seen = (ralph.cwd / "seen.txt").read_text()
    assert not [
        line for line in seen.splitlines() if line.split("=")[0] in (*NAMES, "PIP_PROXY", "CURL_OPTIONS")
    ]
    # The model gets its own text back unchanged.
    written = everything_written(ralph, ran, server).replace(json.dumps(f"It is {TOKEN}."), "")
    assert [form for form in forms if form in seen + written] == []
    assert "plain [redacted]" in written


def test_a_proxy_without_a_credential_reaches_commands(ralph, serve) -> None:
    ralph.environment |= dict.fromkeys(NAMES, "http://proxy.test:3128") | {"NO_PROXY": "127.0.0.1"}
    serve(bash("env >seen.txt"), Turn("Done."))
    assert ralph("go").code == 0
    seen = (ralph.cwd / "seen.txt").read_text().splitlines()
    assert {f"{name}=http://proxy.test:3128" for name in NAMES} <= set(seen)


@pytest.mark.parametrize("command", [("run", "go"), ("doctor", "--offline")])
def test_a_base_url_with_a_credential_is_refused_without_repeating_it(ralph, command) -> None:
    config = ralph.cwd.parent / "config.toml"
    config.write_text(f"[model]\nbase_url = 'http://{TOKEN}@127.0.0.1:9'\n")
    by_file = ralph(*command, "--config", str(config))
    by_flag = ralph(*command, "--base-url", f"http://{TOKEN}@127.0.0.1:9")
    ralph.environment["ANTHROPIC_BASE_URL"] = f"http://{TOKEN}@127.0.0.1:9"
    by_variable = ralph(*command)
    for ran in (by_file, by_flag, by_variable):
        assert ran.code in (2, 78)
        assert "must not hold a user or password" in ran.stdout + ran.stderr
        assert TOKEN not in ran.stdout + ran.stderr
