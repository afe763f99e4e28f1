"""Builds Landlock rulesets and seccomp filters from the rights that a command gets. Linux uses them to confine the
command.
"""
