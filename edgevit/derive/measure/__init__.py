"""What calibration images say of a network: moments of its tokens, and what its answers feel."""
