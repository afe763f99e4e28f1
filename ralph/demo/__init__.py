"""`ralph demo`: ralph's main job with a scripted model. Everything else is real."""

from ralph.demo.demo import run_demo

__all__ = ["run_demo"]
