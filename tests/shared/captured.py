"""What was captured on real boards: their folders' names, what programs printed there, and how to read their power."""

from __future__ import annotations

from typing import Any

AGX = "agx-orin-64gb-jetpack6.2.1"
AGX7 = "agx-orin-64gb-jetpack7.2.1"  # after jetson_clocks
AGX5 = "agx-orin-64gb-jetpack5.1.1"  # composed
AGX623, AGX722 = "agx-orin-64gb-jetpack6.2.3", "agx-orin-64gb-jetpack7.2.2"  # the same, but for their releases
NX = "orin-nx-16gb-jetpack6.2"  # in MAXN_SUPER; 40W has the same parts of the GPU on, 15W has not
NANO = "orin-nano-8gb-jetpack6.2.1"

AGX_TOTAL = [["40", "VDD_GPU_SOC"], ["40", "VDD_CPU_CV"], ["40", "VIN_SYS_5V0"]]
INA = "sys/bus/i2c/drivers/ina3221"

JETPACK_5_ROOT = (
    "04-24-2023 00:01:24 RAM 1282/62795MB (lfb 15152x4MB) SWAP 0/31398MB (cached 0MB) CPU [0%@729,0%@729,off,off] "
    "EMC_FREQ 0%@2133 GR3D_FREQ 0%@0 GR3D2_FREQ 0%@0 VIC_FREQ 729 APE 174 CV0@-256C CPU@42.593C Tboard@32C "
    "SOC2@39.343C Tdiode@33.25C SOC0@39.375C CV1@-256C GPU@-256C tj@42.593C SOC1@40.468C CV2@-256C "
    "VDD_GPU_SOC 2399mW/2399mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 4032mW/4032mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 301mW/301mW NC 0mW/0mW"
)
JETPACK_6_ROOT = (
    "05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) CPU [14%@2188,5%@2112] "
    "EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] NVENC 79%@166 NVDEC off APE 174 cpu@52.562C soc2@48.437C soc0@49.093C "
    "tj@52.562C soc1@49.656C VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 4707mW/4707mW"
)
JETPACK_6_USER = (
    "04-27-2026 14:59:41 RAM 775/7620MB (lfb 3x4MB) SWAP 0/3810MB (cached 0MB) CPU [1%@729,0%@729] GR3D_FREQ 0% "
    "cpu@48.468C soc2@47.531C gpu@48.562C VDD_IN 4761mW/4778mW VDD_CPU_GPU_CV 515mW/501mW VDD_SOC 1428mW/1428mW"
)
JETPACK_7_ROOT = (
    "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,10%@2201] EMC_FREQ 3%@3199 "
    "GR3D_FREQ 12%@[1300,1300] NVENC0 off APE 174 cpu@52.968C/53.968C soc2@48.406C/48.406C gpu@47.625C/47.625C "
    "VDD_GPU_SOC 5139mW/5200mW/5300mW VDD_CPU_CV 3268mW/3268mW/3268mW VIN_SYS_5V0 5500mW/5500mW/5500mW"
)
NVMAP = """CLIENT                        PROCESS      PID        SIZE
user                         gpu_burn     7979   23525644K
user                   two words here     4711       1024K
user                      gnome_shell     4711          2M
total                                            2G
"""


def read_power(meter: Any) -> Any:
    with meter:
        meter.read()
    power = meter.figures()["power"]
    return power and {**power, "ticks_ns": []}  # which the measurement adds
