from __future__ import annotations

import os


def read_all(descriptor: int) -> bytes:
    """All that comes until the other end of a pipe or terminal is closed. Closes the descriptor."""
    data = b""
    try:
        while piece := os.read(descriptor, 65_536):
            data += piece
    except OSError:  # so Linux says that the other end of a terminal was closed
        return data
    finally:
        os.close(descriptor)
    return data
