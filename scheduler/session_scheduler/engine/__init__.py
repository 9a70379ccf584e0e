"""The running scheduler: event handlers, sessions, and the work in flight between them."""
