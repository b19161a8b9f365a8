"""Training a network.

settings     the options of a training
loop         the loop that all methods share; `mixing`, `optimizer`, `order`, `stopping` are parts of it
distil       the teacher and its loss; `constraint` is the interface of a penalty that a method adds
validation   the loss and score on images that are held out
passes       go through images without training
ridge        classifiers on features, in closed form
detections   boxes: their losses and their average precision
compute      the device and precision of tensors; `products` those of matrix products; `memory` whether a batch fits
saved        the state of an interrupted training, which `state` writes; `history` is its curve
"""
