"""How busy the GPU is."""

from edgevit.agent.meters import gpu


def test_gpu_load_is_read_wherever_the_driver_puts_it(tmp_path):
    for path in gpu.PATHS:
        file = tmp_path / path.replace("/", "_") / path
        file.parent.mkdir(parents=True)
        file.write_text("990\n")
        with gpu.Meter(str(tmp_path / path.replace("/", "_"))) as meter:
            meter.read()
            file.write_text("1000\n")
        assert meter.figures() == {"gpu_load_permille": (990, 1000)}
