"""What a model is: its blocks as tensors, its axes, its outputs, its cost, and how it is read from a checkpoint.

network      `Network`: a module and its family as one object; `layers` describes its blocks
anatomy      the weights of a block as tensors, and how each axis is sliced
output       logits, features, maps or boxes: what is compared, and how it is scored
cost         MACs and parameters of a network of any sizes
opening      open a timm model, a file of weights, a repository of the hub, or a model folder
dense        a network with a head of the user's; `detector` is one whose outputs are boxes
families/    one file or folder for each kind of network: vit/, swin/

To add a family, add `families/<name>.py`; `families/__init__.py` says what it defines, and
tests/network/test_families_protocol.py sweeps the folder.
"""
