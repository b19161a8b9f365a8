"""Vulcan (ICLR 2026)."""
