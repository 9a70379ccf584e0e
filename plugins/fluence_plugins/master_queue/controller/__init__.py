"""The controller: pools heard over NATS, the desired state of each MasterQueue, and its reconcilers."""
