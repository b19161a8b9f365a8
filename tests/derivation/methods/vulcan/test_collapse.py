import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgevit.derivation.methods.vulcan.collapse import (
    cluster_neurons,
    largest_members,
    make_clusters,
    neurons,
    weight_collapse,
)
from edgevit.network.anatomy import Ffn


def ffn_of(w1, b1=None, w2=None, wg=None, bg=None):
    w2 = torch.randn(*w1.shape[::-1], dtype=w1.dtype) if w2 is None else w2
    return Ffn(w1=w1, b1=b1, w2=w2, b2=None, wg=wg, bg=bg)


@given(st.integers(0, 2**31), st.integers(2, 12), st.data())
@settings(max_examples=50)
def test_anchors_are_the_first_largest_member_of_every_cluster(seed, count, data):
    labels = torch.tensor(data.draw(st.permutations([*range(count), *[0] * count])))
    scores = torch.randint(0, 4, (len(labels),), generator=torch.Generator().manual_seed(seed)).double()  # ties
    for k, anchor in enumerate(largest_members(labels, scores, count).tolist()):
        members = [i for i in range(len(labels)) if labels[i] == k]
        assert anchor == max(members, key=lambda i: (scores[i], -i))


@pytest.mark.parametrize("distinct", [40, 3, 1])
def test_every_cluster_has_a_member_even_when_neurons_coincide(distinct):
    rows = torch.randn(distinct, 7, generator=torch.Generator().manual_seed(0))
    block = ffn_of(rows.repeat(40 // distinct + 1, 1)[:40], torch.zeros(40))
    labels = cluster_neurons(block, 9, seed=0)
    assert sorted(set(labels.tolist())) == list(range(9)) and len(labels) == 40


def test_nothing_is_clustered_when_nothing_goes():
    assert cluster_neurons(ffn_of(torch.randn(5, 3)), 5, seed=0).tolist() == [0, 1, 2, 3, 4]


def test_bias_is_part_of_a_neuron():
    w1, b1 = torch.randn(4, 3), torch.randn(4)
    torch.testing.assert_close(neurons(ffn_of(w1, b1)), torch.cat([w1, b1[:, None]], 1))
    assert neurons(ffn_of(w1)) is w1
    wg, bg = torch.randn(4, 3), torch.randn(4)
    gated = torch.cat([w1, b1[:, None], wg, bg[:, None]], 1)
    torch.testing.assert_close(neurons(ffn_of(w1, b1, wg=wg, bg=bg)), gated)


def test_weight_collapse_equals_the_sum_written_out_and_its_gradient_finite_differences():
    generator = torch.Generator().manual_seed(0)
    w1 = torch.randn(8, 5, dtype=torch.double, generator=generator, requires_grad=True)
    b1 = torch.randn(8, dtype=torch.double, generator=generator, requires_grad=True)
    clusters = make_clusters(torch.tensor([0, 0, 1, 1, 1, 2, 3, 0]), torch.arange(8.0))  # one cluster of one member
    anchors = clusters.anchor_of
    assert anchors.tolist() == [7, 7, 4, 4, 4, 5, 6, 7]

    def both(weight, bias):
        return weight_collapse(ffn_of(weight, bias, torch.zeros(5, 8, dtype=torch.double)), clusters)

    absolute, square = both(w1, b1)
    rows = torch.cat([w1, b1[:, None]], 1)
    torch.testing.assert_close(absolute, (rows - rows[anchors]).abs().sum())
    torch.testing.assert_close(square, (rows - rows[anchors]).square().sum())
    assert torch.autograd.gradcheck(both, (w1, b1))
    gated = weight_collapse(ffn_of(w1, b1, torch.zeros(5, 8), wg=2 * w1, bg=b1), clusters)
    torch.testing.assert_close(gated[0], 3 * (w1 - w1[anchors]).abs().sum() + 2 * (b1 - b1[anchors]).abs().sum())


def test_merging_equal_neurons_changes_no_output():
    w1, b1 = torch.randn(4, 6), torch.randn(4)
    copies = torch.tensor([0, 1, 2, 3, 0, 2, 2])
    part = ffn_of(w1[copies], b1[copies])
    clusters = make_clusters(copies, torch.rand(7))
    merged = part.merged(clusters.labels, clusters.anchors)
    x = torch.randn(10, 6)

    def ffn(b):
        return torch.nn.functional.gelu(x @ b.w1.T + b.b1) @ b.w2.T

    assert merged.w1.shape == (4, 6)
    torch.testing.assert_close(ffn(merged), ffn(part), rtol=1e-5, atol=1e-5)


def centres_of(rows, labels):
    return torch.stack([rows[labels == k].mean(0) for k in range(int(labels.max()) + 1)])


def test_every_neuron_is_in_the_cluster_whose_mean_is_nearest():
    rows = torch.randn(120, 10, generator=torch.Generator().manual_seed(0)).double()
    labels = cluster_neurons(ffn_of(rows + 100), 30, seed=0)
    distances = torch.cdist(rows, centres_of(rows, labels))
    assert torch.equal(distances.argmin(1), labels)


@pytest.mark.slow
def test_clusters_are_as_tight_as_those_of_scikit_learn():
    from sklearn.cluster import KMeans

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(256, 64, generator=generator) @ torch.diag(torch.logspace(0, -1, 64))
    ours, theirs = [], []
    for seed in range(5):
        labels = cluster_neurons(ffn_of(rows[:, :-1], rows[:, -1]), 100, seed)
        ours.append(float((rows - centres_of(rows, labels)[labels]).square().sum()))
        theirs.append(float(KMeans(100, n_init=1, random_state=seed).fit(rows.numpy()).inertia_))
    assert sum(ours) < 1.02 * sum(theirs)


def test_one_seed_gives_one_clustering_and_copies_are_found():
    rows = torch.randn(12, 9, generator=torch.Generator().manual_seed(1))
    copies = torch.arange(60) % 12
    labels = cluster_neurons(ffn_of(rows[copies]), 12, seed=3)
    assert torch.equal(labels, cluster_neurons(ffn_of(rows[copies]), 12, seed=3))
    assert all(len(set(labels[copies == c].tolist())) == 1 for c in range(12))
