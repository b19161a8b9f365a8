"""Vulcan (ICLR 2026): the method, its collapse of neurons and its loss on ranks."""
