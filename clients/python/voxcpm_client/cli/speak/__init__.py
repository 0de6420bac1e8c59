"""Commands that speak and clone."""
