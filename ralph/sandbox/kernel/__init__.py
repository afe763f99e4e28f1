"""Builds Landlock rulesets and seccomp filters, by which Linux confines processes. Does not decide what they allow."""
