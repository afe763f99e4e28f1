"""A client of models' APIs over HTTP. Each request leads to one complete answer, or to one of five errors."""

import sys

# httpx has a program of its own, and loads it with click and rich if somebody has installed those (uvicorn, and so the
# `mcp` package, brings click). That would cost each run up to 90 ms. None makes its import fail, which httpx expects.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # the import system's own way to forbid one
