"""HEART-ViT: how the loss bends under each token and head, what goes by that, and gates that close in training."""
