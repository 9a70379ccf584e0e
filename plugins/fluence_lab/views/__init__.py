"""The lab's views: each module makes one, from what an observer sees, what it saw, or the JSON of a command."""
