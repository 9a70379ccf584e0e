"""Remote pools that tell over NATS what they have become Kueue's flavors and queues, as a MasterQueue says."""
