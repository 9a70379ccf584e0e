"""Access to a cluster: manifests in files, and the port that a live or an in-memory cluster implements."""
