"""Placement of pods and devices by matching them against a Fluxion resource graph."""
