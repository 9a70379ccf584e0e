"""The embedded matcher: requests, reservations and explanations, on the compiled engine."""
