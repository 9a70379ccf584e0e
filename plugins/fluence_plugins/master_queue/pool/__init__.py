"""What `fluence pool` does: publish a pool's quotas, and list pools."""
