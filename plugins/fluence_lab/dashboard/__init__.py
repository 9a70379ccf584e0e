"""The dashboard: pages about a live cluster or files, which users with a token read in the browser."""
