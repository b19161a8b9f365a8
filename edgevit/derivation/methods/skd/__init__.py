"""SKD super-network: slices of every size, the order in which units go, and the rotation before it."""
