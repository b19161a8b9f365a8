"""What a model is: its blocks as tensors, its cost, its folder on disk.

To add a timm family, add `families/<name>.py`; `families/__init__.py` says what it defines, and
tests/network/test_families.py sweeps the folder.
"""
