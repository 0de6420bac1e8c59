"""Parts of networks for any family: transformers, convolutions, flow matching, noise, weights."""
