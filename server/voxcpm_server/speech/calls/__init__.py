"""The text and the waits of the calls by which a stream has engines generate its segments."""
