"""Readers and writers of graphs and resource sets."""
