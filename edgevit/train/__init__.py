"""Training a network: where tensors are computed, the loop, what it saw on its way, and a teacher."""
