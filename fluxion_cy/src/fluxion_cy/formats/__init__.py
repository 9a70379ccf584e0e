"""The forms in which graphs and resource sets are read and written."""
