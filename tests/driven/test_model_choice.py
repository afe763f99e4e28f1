"""A driver's `set_model` names a model that the server of the run can have."""

from __future__ import annotations

import pytest

from ralph.conversation.target import Target
from ralph.driven.driver import SessionFacts
from ralph.retry.targets import Roster
from ralph.settings.tables import Settings
from ralph.values.redaction import Redactor
from ralph.values.servers import OPENAI_RESPONSES
from tests.rows import every_row

ANTHROPIC = Target("claude-opus-5-5", "claude-opus-5-5", "https://api.anthropic.com")
OPENAI = Target("gpt-6-sol", "gpt-6-sol", "https://api.openai.com/v1", api=OPENAI_RESPONSES)
GATEWAY = Target("gpt-6-sol", "gpt-6-sol", "http://gateway.test/v1", api=OPENAI_RESPONSES)


@every_row(
    ("targets", "requested", "vendor"),
    [
        ([ANTHROPIC], "gpt-6-sol", "OpenAI"),
        ([ANTHROPIC], "claude-sonnet-5-5", None),
        ([ANTHROPIC], "unheard-of", None),
        ([ANTHROPIC, OPENAI], "gpt-6-sol", None),
        ([ANTHROPIC, OPENAI], "grok-4.7", "xAI"),
        ([OPENAI], "sonnet", "Anthropic"),
        ([OPENAI], "gpt-6-luna", None),
        ([GATEWAY], "sonnet", None),
        ([GATEWAY], "grok-4.7", None),
    ],
)
def test_a_model_of_another_vendor_is_not_asked_for_at_a_vendors_own_server(
    targets, requested, vendor
) -> None:
    roster = Roster(targets, can_grow=True)
    choice = SessionFacts(roster, Settings(), Redactor([]))
    if vendor is None:
        assert choice.choose(requested) == roster.find(requested).model
        return
    with pytest.raises(
        ValueError, match=f"is a model of {vendor}, and this run asks {targets[0].base_url}: "
    ):
        choice.choose(requested)
