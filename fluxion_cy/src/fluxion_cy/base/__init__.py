"""Readers that every package uses: arguments, texts, idsets and hostlists."""
