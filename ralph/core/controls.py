"""What a driver may change while the loop runs. The loop reads it; it decides nothing itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunControls:
    auto_retry: bool = True
    """False: a failed request is not asked again."""
    model: str | None = None
    """The model to take from the next request on. None: stay with the one in use."""

    def take_model_wish(self) -> str | None:
        """The wish, once."""
        wish, self.model = self.model, None
        return wish
