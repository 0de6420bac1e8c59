"""Removes Markdown and HTML from text that arrives in pieces.

`MarkupRemover` (remover.py) reads lines: headings, lists, tables, quotations, code. Their content passes through
`Inline` (inline.py): emphasis, links, code spans, tags, maths. `Output` (output.py) holds marks that are in doubt.

Each character is read once, and what it means depends on the characters before it and on a bounded number after it.
So the result is the same however the text is divided.
"""
