"""The running scheduler: events into the state, sessions, and the work in flight between them."""
