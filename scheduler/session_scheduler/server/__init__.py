"""One replica of the live scheduler, from standby to shutdown, and its HTTP endpoints."""
