"""The Kubernetes API objects: MasterQueues, Kueue's kinds, the store of what was observed, and server-side apply."""
