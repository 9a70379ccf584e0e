"""Arguments, texts, idsets and hostlists: what every other part reads."""
