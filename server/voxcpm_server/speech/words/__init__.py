"""The times of the words of a stream."""
