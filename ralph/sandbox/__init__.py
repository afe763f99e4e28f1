"""Limits what commands and file tools may read, write and reach over the network."""
