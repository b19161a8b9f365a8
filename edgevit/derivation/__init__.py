"""From a base, target classes and a budget to a slim model: measure, plan, realise, and train.

To add a method, add `methods/<name>.py`, or a folder with `method.py` in it where it has files of its own;
`methods/__init__.py` says what it defines. What methods share: `measure/`, what images say of a network; `algebra/`,
closed forms on weights; `allocate/`, how a budget is spent; and `edgevit/train/`.
"""
