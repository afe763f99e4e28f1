"""Reads and writes files for the tools. Writes only inside the roots, which are the directories that the run may
write to.
"""
