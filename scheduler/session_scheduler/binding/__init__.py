"""The binding cycle: prebind, the gang's plan, binds, nominations, evictions."""
