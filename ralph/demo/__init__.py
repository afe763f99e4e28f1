"""`ralph demo`: the main job on a scripted model, everything else real."""

from ralph.demo.demo import run_demo

__all__ = ["run_demo"]
