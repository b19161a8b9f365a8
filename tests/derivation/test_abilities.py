"""What a method cannot be asked for is refused with the methods that can."""

import pytest
from example_method import with_the_example

from edgevit.derivation.abilities import refuse_linear, refuse_untaught
from edgevit.derivation.methods import load_method
from edgevit.errors import OptionError


def test_milliseconds_are_for_methods_that_can_spend_them(tmp_path):
    refuse_linear("forge", "mj")
    told = r"--fps: method 'example' cannot allocate by a cost table, as its file has no 'ms' .*; try --macs, --params,"
    with with_the_example(tmp_path), pytest.raises(OptionError, match=told):
        refuse_linear("example", "fps")


def test_unlabelled_images_need_a_teacher_and_training():
    untaught, taught = (load_method(name).Config() for name in ("vulcan", "forge"))
    with pytest.raises(OptionError, match=r"try --set vulcan\.teacher=restricted"):
        refuse_untaught("vulcan", untaught, 10)
    with pytest.raises(OptionError, match="with 0 steps nothing is trained"):
        refuse_untaught("forge", taught, 0)
    refuse_untaught("forge", taught, 10)
