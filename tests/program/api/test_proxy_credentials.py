"""A credential in a proxy's URL, with or without a password, must not reach a command, the API or a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ralph.mock_api import Turn
from tests.program.model_answers import bash, calls

TOKENS = [f"canary-{number}f3a-token" for number in range(4)]
QUOTED = [token.replace("a", "%61") for token in TOKENS]
NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def everything_written(ralph, ran, server) -> str:
    files = [path for path in Path(ralph.environment["HOME"]).rglob("*") if path.is_file()]
    told = [request.body.decode() for request in server.requests]
    return "\n".join([ran.stdout, ran.stderr, *told, *(path.read_text() for path in files)])


def test_a_credential_of_a_proxy_reaches_nobody(ralph, serve) -> None:
    """Each form of an address has a credential of its own, in a variable of its own."""
    urls = (
        f"http://{TOKENS[0]}@proxy.test:3128",
        f"{TOKENS[1]}@proxy.test:3128",
        f"http://me:{QUOTED[2]}@proxy.test",
        f"{QUOTED[3]}:@p",
    )
    ralph.environment |= dict(zip(NAMES, urls + urls[:2], strict=True))
    more = {f"MORE_{number}": url for number, url in enumerate(urls)}
    more |= {f"OPTIONS_{number}": f"--proxy {url}" for number, url in enumerate(urls)}
    ralph.environment |= more
    forms = [*TOKENS, *QUOTED[2:]]
    (ralph.cwd / "notes.txt").write_text(f"plain {' '.join(forms)}\n")
    look = bash("env | sort | tee seen.txt; cat notes.txt")
    says = f"It is {' '.join(TOKENS)}."
    server = serve(look, calls(("Grep", {"pattern": "plain", "output_mode": "content"})), Turn(says))
    ran = ralph("go", "--output-format", "stream-json", code=0)
    seen = (ralph.cwd / "seen.txt").read_text()
    assert not [line for line in seen.splitlines() if line.split("=")[0] in (*NAMES, *more)]
    # The model gets its own text back unchanged.
    written = everything_written(ralph, ran, server).replace(json.dumps(says), "")
    assert [form for form in forms if form in seen + written] == []
    assert f"plain {' '.join(['[redacted]'] * len(forms))}" in written


def test_a_proxy_without_a_credential_reaches_commands(ralph, serve) -> None:
    ralph.environment |= dict.fromkeys(NAMES, "http://proxy.test:3128") | {"NO_PROXY": "127.0.0.1"}
    serve(bash("env >seen.txt"), Turn("Done."))
    assert ralph("go").code == 0
    seen = (ralph.cwd / "seen.txt").read_text().splitlines()
    assert {f"{name}=http://proxy.test:3128" for name in NAMES} <= set(seen)


@pytest.mark.parametrize("command", [("run", "go"), ("doctor",)])
def test_a_base_url_with_a_credential_is_refused_without_repeating_it(ralph, command) -> None:
    config = ralph.cwd.parent / "config.toml"
    config.write_text(f"[model]\nbase_url = 'http://{TOKENS[0]}@127.0.0.1:9'\n")
    by_file = ralph(*command, "--config", str(config))
    by_flag = ralph(*command, "--base-url", f"http://{TOKENS[0]}@127.0.0.1:9")
    ralph.environment["ANTHROPIC_BASE_URL"] = f"http://{TOKENS[0]}@127.0.0.1:9"
    by_variable = ralph(*command)
    for ran in (by_file, by_flag, by_variable):
        assert ran.code in (2, 78)
        assert "must not contain a user or password" in ran.stdout + ran.stderr
        assert TOKENS[0] not in ran.stdout + ran.stderr
