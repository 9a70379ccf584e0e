"""The plugin in a session: it translates groups into jobspecs, and matches these in the graph."""
