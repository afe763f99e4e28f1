"""Opens connections to servers: the address, the proxy and the authorities to trust."""
