"""Rank the units of a network by a score, and remove the lowest within a budget."""
