"""Builds the Landlock rulesets and seccomp filters for given rights. Linux uses them to confine processes."""
