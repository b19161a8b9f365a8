"""HEART-ViT."""
