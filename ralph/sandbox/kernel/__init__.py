"""Builds Landlock rulesets and seccomp filters, with which Linux confines processes. It does not decide what they
allow.
"""
