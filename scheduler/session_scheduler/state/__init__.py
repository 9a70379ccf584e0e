"""The scheduler's state: events in, values out, no I/O."""
