"""Small clusters in our own words, each about one thing that an allocation may hang on."""
