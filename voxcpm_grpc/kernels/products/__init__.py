"""Matrix products with what follows them, for any transformer, and the tables of their tile sizes."""
