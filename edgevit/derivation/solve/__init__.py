"""Closed forms on the weights of one block: low-rank factors, least squares."""
