"""Operations on whole rows: norms, activations, noise."""
