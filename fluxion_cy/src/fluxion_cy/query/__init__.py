"""A prompt over the matcher with the commands of Fluxion's `resource-query`."""
