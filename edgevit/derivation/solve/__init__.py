"""Closed forms: low-rank factors and least squares for the weights of a block, and a linear head for a base."""
