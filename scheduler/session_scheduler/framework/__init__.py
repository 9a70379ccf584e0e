"""The session and the plugin runtime: one cycle's consistent view, its undo log, and the calls to plugins."""
