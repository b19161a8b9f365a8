"""HEART-ViT: how much the loss bends under each token and each head, what goes by that, and gates that close in
training."""
