"""`ralph demo` shows how ralph works. Only the model and the faults of the API are scripted. Everything else is real."""

from ralph.demo.demo import run_demo

__all__ = ["run_demo"]
