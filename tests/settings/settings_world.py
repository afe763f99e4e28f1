"""Makes everything that settings are read from: a home directory, a working directory, settings files and
environment variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.settings.merge import SettingsError, load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.settings.tables import Settings

KEY = "sk-ant-api03-0123456789"


class World:
    """A home directory, a working directory and environment variables, all inside a temporary directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.cwd = tmp_path / "work"
        self.user_file = tmp_path / "home" / ".config" / "ralph" / "config.toml"
        self.local_file = self.cwd / "ralph.toml"
        self.named_file = tmp_path / "named" / "my.toml"
        for directory in (self.cwd, self.user_file.parent, self.named_file.parent):
            directory.mkdir(parents=True)
        self._written: set[Path] = set()
        self.environment = {"HOME": str(tmp_path / "home"), "ANTHROPIC_API_KEY": KEY}

    def load(
        self,
        flags: Any = None,
        *,
        user: str | None = None,
        local: str | None = None,
        named: str | None = None,
        **environment: str,
    ) -> Settings:
        """Loads the settings from these texts of files. Removes files of earlier calls that this call does not
        write again.
        """
        for path, text in ((self.user_file, user), (self.local_file, local), (self.named_file, named)):
            if text is not None:
                path.write_text(text)
                self._written.add(path)
            elif path in self._written:
                path.unlink()
                self._written.remove(path)
        config_file = self.named_file if named is not None else None
        return load_settings(flags or {}, {**self.environment, **environment}, self.cwd, config_file)

    def error(self, *args: Any, **kwargs: Any) -> SettingsError:
        with pytest.raises(SettingsError) as caught:
            self.load(*args, **kwargs)
        assert "\n" not in str(caught.value)
        return caught.value
