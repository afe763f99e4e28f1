"""Keys that a program prints, and that expire while a run is at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.foreign.wire import DONE, command, refusal, stream
from tests.api.harness import RawServer, read_request
from tests.rows import every_row

REFUSED = refusal(401, {"error": {"type": "authentication_error", "message": "invalid x-api-key"}})
COUNTING = 'n=$(($(cat "$HOME/n" 2>/dev/null) + 1)); echo $n > "$HOME/n"; echo sk-of-the-night-$n'
"""Prints another key each time, and keeps the number of times in a file."""


@pytest.fixture
def vault(ralph):
    """Makes a program outside the working directory. Returns its path."""
    del ralph.environment["ANTHROPIC_API_KEY"]

    def program(script: str = COUNTING, name: str = "vault") -> str:
        path = Path(ralph.environment["HOME"], "bin", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return program


class Gateway:
    """A server that keeps the heads of the requests for messages. The last answer is repeated."""

    def __init__(self, *answers: bytes) -> None:
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._answers = answers
        self._server = RawServer(self._serve)
        self.base_url, self.close = self._server.base_url, self._server.close

    def _serve(self, sock) -> None:
        head, _, body = read_request(sock).partition(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            sock.sendall(refusal(404, {}))
            return
        lines = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:])
        self.heads.append({name.lower(): text for name, _, text in lines})
        self.bodies.append(body)
        sock.sendall(self._answers[min(len(self.heads), len(self._answers)) - 1])


@pytest.fixture
def serve():
    started: list[Gateway] = []

    def start(*answers: bytes) -> Gateway:
        started.append(Gateway(*answers))
        return started[-1]

    yield start
    for gateway in started:
        gateway.close()


def target(server, command: str, *lines: str) -> str:
    """The settings of one target with this command."""
    own = (f'base_url = "{server.base_url}"', f"api_key_command = '{command}'", *lines)
    retry = "[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\n"
    return "\n".join((retry, "[[targets]]", 'name = "main"', 'model = "model-main"', *own))


def keys(server) -> list[str]:
    """The number of the key of each request. Both headers carry it."""
    found = []
    for sent in server.heads:
        assert sent["authorization"] == f"Bearer {sent['x-api-key']}"
        found.append(sent["x-api-key"].removeprefix("sk-of-the-night-"))
    return found


def bash(words: str) -> bytes:
    return stream(command(words, words.replace(" ", "-").replace(".", "-")))


def test_the_program_runs_in_the_users_configuration_without_credentials(ralph, serve, vault) -> None:
    server = serve(bash("env"), DONE)
    ralph.environment["GITHUB_TOKEN"] = "a-token-of-github"
    ralph.environment["AWS_CONFIG_FILE"] = f"{ralph.cwd}/aws"
    path = vault(f'pwd > "$HOME/seen"; env >> "$HOME/seen"; {COUNTING}')
    ralph.user_file.write_text(target(server, path))
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert keys(server) == ["1", "1"]
    seen = Path(ralph.environment["HOME"], "seen").read_text()
    assert seen.splitlines()[0] == str(ralph.user_file.parent.resolve())
    assert "a-token-of-github" not in seen
    assert "AWS_CONFIG_FILE" not in seen, "commands may write it"
    bodies = b"".join(server.bodies).decode()
    assert "sk-of-the-night" not in ran.stdout + ran.stderr + bodies
    assert ran.objects[0]["apiKeySource"] == "api_key_command"


def test_the_key_of_each_turn_may_expire_and_is_renewed_at_once_and_counted(ralph, serve, vault) -> None:
    server = serve(REFUSED, bash("echo one"), REFUSED, bash("echo two"), REFUSED, DONE)
    ralph.user_file.write_text(target(server, vault()))
    ran = ralph("go", "--output-format", "stream-json")
    assert (ran.code, ran.result["retries"]) == (0, 3)
    assert keys(server) == ["1", "2", "2", "3", "3", "4"]
    retries = ran.of("api_retry")
    told = [(retry["attempt"], retry["retry_delay_ms"], retry["error_status"]) for retry in retries]
    assert told == [(1, 0, 401)] * 3


def test_a_second_refusal_in_a_chain_ends_the_run_exits_77(ralph, serve, vault) -> None:
    server = serve(REFUSED)
    ralph.user_file.write_text(target(server, vault()))
    ran = ralph("go")
    assert (ran.code, keys(server)) == (77, ["1", "2"])
    advice, way_on = ran.stderr.splitlines()[-3:-1]
    assert advice == "[hint] Check the key: api_key_command of target 'main'."
    assert way_on.startswith("[hint] continue with: ralph --resume ")


def test_without_retries_a_refused_key_is_not_renewed_exits_77(ralph, serve, vault) -> None:
    server = serve(REFUSED, DONE)
    ralph.user_file.write_text(target(server, vault()))
    ran = ralph("go", "--retry", "off")
    assert (ran.code, keys(server)) == (77, ["1"])


def test_an_old_key_is_renewed_before_a_request(ralph, serve, vault) -> None:
    server = serve(bash("sleep 1.1"), DONE)
    ralph.user_file.write_text(target(server, vault(), "api_key_ttl_s = 1"))
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert keys(server) == ["1", "2"]
    assert not ran.of("api_retry")


def test_with_a_time_of_nothing_only_a_refusal_renews_the_key(ralph, serve, vault) -> None:
    server = serve(bash("sleep 0.1"), DONE)
    ralph.user_file.write_text(target(server, vault(), "api_key_ttl_s = 0"))
    assert ralph("go").code == 0
    assert keys(server) == ["1", "1"]


def test_if_the_program_fails_later_its_last_key_is_used(ralph, serve, vault) -> None:
    server = serve(bash("echo one"), REFUSED, DONE)
    path = vault(f'test -e "$HOME/n" && {{ echo sealed >&2; exit 3; }}; {COUNTING}')
    ralph.user_file.write_text(target(server, path))
    ran = ralph("go", "--output-format", "stream-json", code=0)
    assert keys(server) == ["1", "1", "1"]
    notices = [one["text"] for one in ran.of("notice")]
    assert "target 'main': api_key_command ended with exit 3: sealed; its last key is used" in notices


CANNOT = {
    "fails": ("exit 3", "target 'main': api_key_command ended with exit 3"),
    "fails and repeats what it printed": (
        'echo tok-of-vault; echo "no cache for tok-of-vault" >&2; exit 3',
        "exit 3: no cache for [redacted]",
    ),
    "prints without end": ("yes", "api_key_command must print the key and nothing else"),
    "complains without end": (
        "yes | head -c 5000000 >&2; echo sealed >&2; exit 3",
        "api_key_command ended with exit 3: sealed",
    ),
    "says nothing": ("true", "api_key_command must print the key and nothing else"),
    "is missing": ("no-such-program-of-mine", "api_key_command ended with exit 127"),
    "is relative": ("./vault", "/./vault does not count: "),
}


@every_row("cannot", CANNOT)
def test_a_program_that_cannot_give_a_key_ends_the_run_before_a_request_exits_78(
    ralph, ralph_here, serve, vault, cannot
) -> None:
    vault()
    command, says = CANNOT[cannot]
    server = serve(DONE)
    ralph.user_file.write_text(target(server, command))
    ran = ralph_here("go")
    assert (ran.code, server.heads) == (78, [])
    assert says in ran.last_line


def test_what_the_program_leaves_running_is_stopped_and_not_waited_for(ralph, serve, vault) -> None:
    server = serve(DONE)
    path = vault(f'setsid sh -c "exec sleep 60" & echo $! > "$HOME/left"; {COUNTING}')
    ralph.user_file.write_text(target(server, path))
    assert ralph("go").code == 0
    left = Path(ralph.environment["HOME"], "left").read_text().strip()
    assert not Path("/proc", left).exists()


def test_a_program_that_commands_may_write_is_not_run(ralph, serve, vault) -> None:
    vault()
    server = serve(DONE)
    (ralph.cwd / "vault").write_text("#!/bin/sh\ntouch ran; echo sk-of-the-night-1\n")
    (ralph.cwd / "vault").chmod(0o755)
    ralph.environment["PATH"] = f"{ralph.cwd}:{ralph.environment['PATH']}"
    ralph.environment["PROJ"] = str(ralph.cwd)
    cannot = ("cd $PROJ && ./vault", "make -sC $PROJ key", "sh $PROJ/vault", "env --chdir=$PROJ sh vault")
    for words in (f"{ralph.cwd}/vault", "vault", *cannot):
        ralph.user_file.write_text(target(server, words))
        ran = ralph("go")
        assert (ran.code, server.heads) == (78, []), words
        assert "api_key_command is not run: " in ran.last_line
    assert not (ralph.cwd / "ran").exists()


def test_a_file_of_config_counts_only_where_commands_cannot_write_it(ralph, serve, vault) -> None:
    server = serve(DONE)
    settings = target(server, vault())
    (ralph.cwd / "own.toml").write_text(settings)
    ran = ralph("go", "--config", "own.toml")
    assert (ran.code, server.heads) == (78, [])
    assert "own.toml: api_key_command does not count, as " in ran.last_line
    elsewhere = Path(ralph.environment["HOME"], "own.toml")
    elsewhere.write_text(settings)
    assert ralph("go", "--config", str(elsewhere)).code == 0
    (ralph.cwd / "ralph.toml").write_text(settings)
    refused = ralph("go")
    assert (refused.code, len(server.heads)) == (78, 1)


def test_the_doctor_names_the_program_and_runs_it_only_to_ask(ralph, serve, vault) -> None:
    server = serve(DONE)
    ralph.user_file.write_text(target(server, vault()))
    assert "api_key_command of target 'main' prints the key" in ralph("doctor").stdout
    assert not Path(ralph.environment["HOME"], "n").exists()
    assert "sk-of-the-night" not in ralph("doctor", "--probe").stdout
    assert keys(server) == ["1"]
    assert "answered" in ralph("doctor", "--probe").stdout


def test_the_helper_of_claude_settings_is_run_again_after_a_refusal(ralph, serve, vault) -> None:
    server = serve(bash("echo one"), REFUSED, DONE)
    own = Path(ralph.environment["HOME"], ".claude", "settings.json")
    own.parent.mkdir(exist_ok=True)
    own.write_text(f'{{"apiKeyHelper": "{vault()}"}}')
    ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
    ralph.user_file.write_text("[retry]\npolicy = 'custom'\nbase_delay_s = 0.01\n")
    assert ralph("go").code == 0
    assert keys(server) == ["1", "1", "2"]
