"""Tries out the sandbox: commands in it try what it promises to refuse, and report what they could do."""
