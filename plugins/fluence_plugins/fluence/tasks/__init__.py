"""What the plugin does beside sessions: tasks that follow the resources file and write to the API server."""
