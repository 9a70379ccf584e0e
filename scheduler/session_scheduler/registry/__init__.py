"""The plugin registry: finds, validates and builds plugins."""
