"""Process utilities: the clock, signals, background tasks, sockets, HTTP connections."""
