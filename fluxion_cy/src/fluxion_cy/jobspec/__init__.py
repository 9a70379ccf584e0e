"""Jobspecs (RFC 14) and constraints (RFC 31): read, checked and laid out for the engine."""
