"""What a method cannot be asked for is refused with the methods that can."""

from dataclasses import replace

import pytest

from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.compatibility import refuse_base, refuse_untaught
from edgevit.derivation.method import find_method
from edgevit.derivation.methods import method_names
from edgevit.errors import OptionError
from edgevit.train.settings import Training

WHOLE_BLOCKS = ["nuwa", "skd", "vulcan"]  # the methods that need both attention and FFN in every block


def test_unlabelled_images_need_a_teacher_and_training():
    taught = Training(steps=10, teacher="restricted")
    with pytest.raises(OptionError, match="this training has none; add --teacher restricted"):
        refuse_untaught(replace(taught, teacher="none"))
    with pytest.raises(OptionError, match="with 0 steps nothing is trained"):
        refuse_untaught(replace(taught, steps=0))
    refuse_untaught(taught)


@pytest.fixture
def half(small_vit):
    """The small base without the attention of its second block."""
    network = small_vit()
    first, second = network.read()
    return network.build([first, replace(second, attention=None)]).eval()


def test_most_methods_cut_blocks_that_lack_a_site():
    assert [name for name in sorted(method_names()) if not find_method(name).cuts_half_blocks] == WHOLE_BLOCKS


@pytest.mark.parametrize("name", method_names())
def test_a_method_cuts_a_base_whose_blocks_lack_a_site_or_is_refused_in_one_line(name, half):
    method = find_method(name)
    if name not in WHOLE_BLOCKS:
        refuse_base(method, method.make_config({}), half, make_policy("fused"))
        return
    with pytest.raises(OptionError) as error:
        refuse_base(method, method.make_config({}), half, make_policy("fused"))
    message = f"{name} cuts blocks that have both attention and FFN, and block 1 of this base has no attention; derive"
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
