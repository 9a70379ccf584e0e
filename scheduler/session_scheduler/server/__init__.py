"""One replica of the live scheduler, from standby to its end, and what it serves over HTTP."""
