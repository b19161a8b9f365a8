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


def test_gpu_load_is_found_behind_the_gpus_clock(tmp_path):
    device = tmp_path / "sys/devices/platform/17000000.gpu"
    clock = device / "devfreq/17000000.gpu"
    clock.mkdir(parents=True)
    (device / "load").write_text("990\n")
    (clock / "device").symlink_to("../../../17000000.gpu")  # as the kernel links them
    (tmp_path / "sys/class/devfreq").mkdir(parents=True)
    (tmp_path / "sys/class/devfreq/17000000.gpu").symlink_to(clock)
    with gpu.Meter(str(tmp_path)) as meter:
        pass
    assert meter.figures() == {"gpu_load_permille": (990,)}
