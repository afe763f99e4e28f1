"""Finds the names of models that a shell may offer: those of the targets in the user's settings."""

from __future__ import annotations

import os
from pathlib import Path

from ralph.settings.toml_file import SettingsFileError, parsed, read_settings_file, user_settings_path

TYPE_CHECKING = False  # `typing` takes longer to load than this module

if TYPE_CHECKING:
    from ralph.cli.shell.answer import Values
    from ralph.cli.shell.words import Completion


def models(one: Completion) -> Values:
    named = one.given.get("--config")
    for path in (user_settings_path(os.environ), Path.cwd() / Path(named).expanduser() if named else None):
        try:
            data = None if path is None else read_settings_file(path)
            targets = parsed(path, data).get("targets", []) if path is not None and data else []
        except SettingsFileError:  # `ralph doctor` reports it
            continue
        for target in targets if isinstance(targets, list) else []:
            if isinstance(target, dict) and isinstance(target.get("name"), str):
                yield target["name"], f"target: {target.get('model', '')}"
