"""A prompt over the matcher, in the words of the reference's resource-query."""
