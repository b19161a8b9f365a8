"""NuWa (CVPR 2026): the method, and the purification that finds its anchor."""
