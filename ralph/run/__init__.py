"""Runs one process of `ralph run`, from its options to its exit code.

A text run works on one prompt. A driven run works on the messages of a driver, a program that controls ralph over
standard input.
"""
