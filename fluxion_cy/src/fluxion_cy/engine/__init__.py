"""The compiled engine: resource graph, planner and traverser, and the base of all matchers."""
