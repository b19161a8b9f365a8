"""scikit-learn's digits."""

from __future__ import annotations

import numpy as np

from edgevit.data.sources.digits import open_source


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    source = open_source("digits")
    found = sorted(int(r) for name in source.class_names for r in source.references("train", name))
    assert found == list(range(1797))
    for reference in source.references("train", "8")[:5]:
        assert labels[reference] == 8
        grey = np.asarray(source.read(reference))
        assert grey.shape == (8, 8, 3)
        np.testing.assert_allclose(grey[..., 1] / 255 * 16, images[reference].reshape(8, 8), atol=0.04)
