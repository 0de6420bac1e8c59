"""The text of a call: its pieces, its window, the words in its speech."""
