"""Measure a network on calibration images: moments of its tokens, and the sensitivity of its outputs."""
