"""ralph: a language-model agent that works in a directory without supervision by a person."""

__version__ = "0.3.0"
