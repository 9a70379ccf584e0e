"""The configuration, and a bounded YAML reader. Public, for plugins' arguments and files."""
