"""Process utilities: the clock, signals, background tasks, sockets, metrics in text form."""
