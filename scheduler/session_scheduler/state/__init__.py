"""State of the scheduler: the cache and the scheduling queue. Event handlers update it between sessions; no I/O."""
