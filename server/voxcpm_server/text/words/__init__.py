"""The words of a text: where they begin and end, and how long they take to speak. Nothing here knows streams."""
