"""Forge, edgevit's own method, and its closed form block by block."""
