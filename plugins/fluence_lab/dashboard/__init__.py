"""The dashboard: pages in the browser about a live cluster or files, which users read with their tokens."""
