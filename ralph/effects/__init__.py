"""Everything that touches the world: sockets, processes, files, signals, terminals."""
