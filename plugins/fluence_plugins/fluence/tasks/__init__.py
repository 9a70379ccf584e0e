"""The plugin's tasks outside of sessions: they follow the resources file, and write to the API server."""
