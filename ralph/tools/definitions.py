"""The definitions of the six tools. Every request to the API contains them, so they are short: less than 3.2 KB of
JSON in total.
"""

from __future__ import annotations

from ralph.values.tool_calls import ToolDefinition

READ = ToolDefinition(
    "Read",
    "Read a text file with line numbers, or an image. Use before Edit. Long files: give offset and limit.",
    {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0, "description": "first line, from 1"},
            "limit": {"type": "integer", "minimum": 1, "description": "lines, default 2000"},
        },
        "required": ["file_path"],
    },
    is_read_only=True,
)

WRITE = ToolDefinition(
    "Write",
    "Create a file or replace all of it. To change a part of one, use Edit.",
    {
        "type": "object",
        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    },
)

EDIT = ToolDefinition(
    "Edit",
    "Replace old_string, which must occur exactly once (or set replace_all), by new_string. Copy it from Read "
    "without line numbers, with enough lines around to be unique.",
    {
        "type": "object",
        "properties": {
            "file_path": {"type": "string"},
            "old_string": {"type": "string"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["file_path", "old_string", "new_string"],
    },
)

BASH = ToolDefinition(
    "Bash",
    "Run a shell command in the working directory: builds, tests, git. No terminal, no input; whatever it "
    "starts is stopped when it ends. For files prefer Read, Edit, Glob, Grep.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "integer", "minimum": 1, "description": "milliseconds"},
            "description": {"type": "string", "description": "its purpose in 5-10 words"},
        },
        "required": ["command"],
    },
)

GLOB = ToolDefinition(
    "Glob",
    "Find files by name, such as *.py or src/**/*.ts. Skips what .gitignore names.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "directory, default: working directory"},
        },
        "required": ["pattern"],
    },
    is_read_only=True,
)

_LINES = {"type": "integer", "minimum": 0}

GREP = ToolDefinition(
    "Grep",
    "Search file contents by regular expression. Skips what .gitignore names and binary files.",
    {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "file or directory"},
            "glob": {"type": "string", "description": "only these files, such as *.{ts,tsx}"},
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_with_matches", "count"],
                "description": "default files_with_matches",
            },
            "-i": {"type": "boolean"},
            "-n": {"type": "boolean", "description": "line numbers, default true"},
            "-A": _LINES,
            "-B": _LINES,
            "-C": _LINES,
            "head_limit": {"type": "integer", "minimum": 1},
        },
        "required": ["pattern"],
    },
    is_read_only=True,
)

DEFINITIONS = {known.name: known for known in (READ, WRITE, EDIT, BASH, GLOB, GREP)}
