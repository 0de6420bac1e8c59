"""The aligner of English: pocketsphinx with its own acoustic model and dictionary."""
