"""The routes, a file for each contract."""
