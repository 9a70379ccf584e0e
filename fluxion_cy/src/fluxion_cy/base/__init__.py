"""Readers that every package uses: arguments, text, idsets and hostlists."""
