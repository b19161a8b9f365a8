"""A classifier with fewer rows says of these classes what it said before."""

import torch

from edgevit.network.classifier import with_classes


def test_dropping_classes_keeps_their_logits_and_the_model_itself(small_vit):
    model = small_vit("deit_tiny_distilled_patch16_224")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(with_classes(model, [5, 2])(images), model(images)[:, [5, 2]])
    assert model.module.head.out_features == 10
