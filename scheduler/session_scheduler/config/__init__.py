"""Settings and the bounded reading of YAML: public, for plugins' arguments and files."""
