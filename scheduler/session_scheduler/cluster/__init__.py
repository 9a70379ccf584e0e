"""The way to a cluster: manifests in files, and the port behind which a live or an in-memory cluster answers."""
