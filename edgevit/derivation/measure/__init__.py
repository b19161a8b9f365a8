"""What calibration images say of a network: moments of its tokens, and how sensitive its logits are to its modules."""
