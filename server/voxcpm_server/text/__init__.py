"""Text normalisation: numbers, dates, units and symbols as a reader says them."""
