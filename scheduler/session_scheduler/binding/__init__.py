"""Carries decisions out: prebind, the gang's plan, the binding requests, nominations."""
