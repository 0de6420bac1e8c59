"""Characters, durations and lexicons, for every part of the project. No language's rules come in."""
