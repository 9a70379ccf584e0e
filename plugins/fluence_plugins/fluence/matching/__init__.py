"""The answers of the plugin within a session: groups as jobspecs, matched against the graph."""
