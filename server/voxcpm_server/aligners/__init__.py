"""The times of words in speech: aligners, and the processes that run them."""
