"""Small clusters of our own. Each covers one condition that decides an allocation."""
