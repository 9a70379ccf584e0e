"""Reads a cluster, and the decisions about it, as plain values: for notebooks, dashboards and reports. Public."""
