"""The compiled engine (resource graph, planner and traverser), and the base class of the matchers."""
