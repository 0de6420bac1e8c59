"""Text with numbers, dates, units and symbols in words. Nothing here knows streams."""
