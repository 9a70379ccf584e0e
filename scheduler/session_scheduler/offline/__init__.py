"""The commands that only read: simulate, explain, status, queues and snapshot."""
