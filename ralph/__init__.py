"""ralph: a language-model agent for directories where nobody is watching."""

__version__ = "0.1.0"
