"""Finds, builds and validates plugins."""
