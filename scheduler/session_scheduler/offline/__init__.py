"""What commands do without scheduling: simulate, explain, status, snapshots."""
