"""The embedded matcher: searches, reservations, `find` and `why` on the compiled engine."""
