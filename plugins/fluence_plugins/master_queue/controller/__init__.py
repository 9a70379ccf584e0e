"""The controller: receives pools' messages, computes the desired state of each MasterQueue, and reconciles it."""
