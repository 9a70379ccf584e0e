"""Jobspecs (RFC 14) and constraints (RFC 31): their readers, and the tables that the engine walks."""
