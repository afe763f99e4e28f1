"""Tests each row of docs/agent-sdk.md with the real Agent SDKs, which run ralph with the row's options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.agent_sdks.table import BESIDES, ROWS
from tests.agent_sdks.trials import PACKAGES, SDKS, play
from tests.services.outside_programs import folder_of, folder_or_skip

if TYPE_CHECKING:
    from tests.agent_sdks.table import Row
    from tests.agent_sdks.trials import Ran

pytestmark = pytest.mark.outside

DECLARED = {
    "python": (
        "claude_agent_sdk/types.py",
        r"^class ClaudeAgentOptions:$(.*?)^(?:class|@)",
        r"^    ([a-z_]+): ",
    ),
    "typescript": (
        "node_modules/@anthropic-ai/claude-agent-sdk/sdk.d.ts",
        r"^export declare type Options = \{$(.*?)^\};?$",
        r"^    (\w+)\?: ",
    ),
}
"""For each SDK: the file that declares its options, a pattern for the declaration, and one for an option's name in
it."""


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> str:
    """The name of an installed SDK."""
    name = str(request.param)
    folder_or_skip(PACKAGES[name])
    return name


def rows_of(sdk: str) -> dict[str, Row]:
    return {name: row for row in ROWS if (name := row.names[SDKS.index(sdk)]) is not None}


def test_every_option_of_the_sdk_has_a_row(sdk) -> None:
    file, part, name = DECLARED[sdk]
    found = re.search(part, (folder_of(PACKAGES[sdk]) / file).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    declared = set(re.findall(name, found[1], re.MULTILINE))
    assert declared - BESIDES == set(rows_of(sdk))


def test_what_the_page_says_of_each_option_is_so(sdk, tmp_path) -> None:
    rows = rows_of(sdk)
    ran = play(sdk, list({row.trial.name: row.trial for row in rows.values()}.values()), tmp_path)
    assert {name: said for name, row in rows.items() if (said := fault(row, ran[row.trial.name]))} == {}


def fault(row: Row, ran: Ran) -> str | None:
    """The difference between the row and what the trial showed, or None if there is none."""
    try:
        is_so = row.check(ran)
    except (AssertionError, AttributeError, IndexError, KeyError, OSError, TypeError) as error:
        return f"{error!r}: {ran.says}"
    return None if is_so else f"not so: {ran.says}"
