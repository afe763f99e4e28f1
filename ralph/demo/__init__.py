"""`ralph demo` shows ralph at work. Only the model and the faults of its API are scripted; the rest is real."""

from ralph.demo.demo import run_demo

__all__ = ["run_demo"]
