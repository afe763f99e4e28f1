"""The tools a model can call: Read, Write, Edit, Bash, Glob, Grep. `docs/tools.md` says what each promises."""

from ralph.tools.tool_room import ALL_TOOLS, ToolSettings
from ralph.tools.toolbox import LocalToolbox

__all__ = ["ALL_TOOLS", "LocalToolbox", "ToolSettings"]
