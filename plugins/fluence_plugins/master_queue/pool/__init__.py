"""The commands of `fluence pool`: publish a pool's quotas, and list pools."""
