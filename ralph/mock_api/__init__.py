"""A scripted server on real sockets, for demos, tests and users' CI. Imports nothing from ralph's other packages."""

from ralph.mock_api.events import as_events, as_message, encode_event, encode_events
from ralph.mock_api.fault import ErrorEvent, Fault, ScenarioError
from ralph.mock_api.scenario import (
    FOREVER,
    Block,
    Model,
    Playable,
    Scenario,
    Script,
    Step,
    Text,
    Thinking,
    ToolUse,
    Turn,
    example_names,
    load_example,
    load_scenario,
    parse_scenario,
)
from ralph.mock_api.server import MockApi, RecordedRequest, run_forever

__all__ = [
    "FOREVER",
    "Block",
    "ErrorEvent",
    "Fault",
    "MockApi",
    "Model",
    "Playable",
    "RecordedRequest",
    "Scenario",
    "ScenarioError",
    "Script",
    "Step",
    "Text",
    "Thinking",
    "ToolUse",
    "Turn",
    "as_events",
    "as_message",
    "encode_event",
    "encode_events",
    "example_names",
    "load_example",
    "load_scenario",
    "parse_scenario",
    "run_forever",
]
