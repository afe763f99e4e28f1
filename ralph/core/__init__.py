"""Decisions: values in, values out. No clock, dice, disk, network, environment or printing."""
