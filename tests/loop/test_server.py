"""The server of a continued loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.loop.opening import with_server
from ralph.loop.values import LoopPlan
from ralph.settings.merge import load_settings
from ralph.values.outcome import CannotError
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

PLAN = LoopPlan("/work", "/work")
LOCAL = "http://127.0.0.1:8080"
KEY = {"ANTHROPIC_API_KEY": "any"}


@every_row(
    ("server", "says"),
    [
        (("anthropic", LOCAL), f": set ANTHROPIC_BASE_URL={LOCAL} as when it began, "),
        (
            ("openai-chat", LOCAL),
            f": set RALPH_API=openai-chat and OPENAI_BASE_URL={LOCAL} as when it began, ",
        ),
    ],
)
def test_without_the_variables_that_named_the_server_the_loop_is_refused(
    server: tuple[str, str], says: str, tmp_path: Path
) -> None:
    settings = load_settings({}, KEY, tmp_path, None)
    with pytest.raises(CannotError) as refused:
        with_server(replace(PLAN, server=server), settings)
    assert f"the loop asked {LOCAL} until now, and would ask https://api.anthropic.com{says}" in str(
        refused.value
    )


def test_a_record_of_an_older_ralph_gets_the_server_of_today(tmp_path: Path) -> None:
    settings = load_settings({}, KEY, tmp_path, None)
    assert with_server(PLAN, settings).server == ("anthropic", "https://api.anthropic.com")


def test_targets_name_their_servers_themselves(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[targets]]\nname = "own"\nmodel = "m"\nbase_url = "{LOCAL}"\n')
    work = tmp_path / "work"
    work.mkdir()
    settings = load_settings({}, KEY, work, file)
    assert with_server(replace(PLAN, server=("anthropic", "https://other.example")), settings).server is None
