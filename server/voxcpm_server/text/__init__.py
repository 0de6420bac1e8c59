"""Work on text alone: lexicons, languages, segments, words, markup, and normalisation. Nothing here knows streams."""
