"""What the scheduler reports: events, conditions and metrics."""
