"""Reads the clocks of a GPU, and the reasons why they are limited, from NVML (the driver's libnvidia-ml.so.1).

Called by peers.py, which writes them into result rows. lab/gpu_clocks.cpp does the same for the `rapt` program. A value
that NVML does not report is None.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional

SM, MEMORY = 1, 2  # nvmlClockType_t
LIMITS = (  # the names of the bits of nvmlClocksEventReasons; bit 0 means that the GPU is idle
    "gpu_idle applications_clocks_setting sw_power_cap hw_slowdown sync_boost sw_thermal_slowdown hw_thermal_slowdown "
    "hw_power_brake_slowdown display_clock_setting"
).split()


class Clocks(NamedTuple):
    sm_mhz: Optional[int] = None
    memory_mhz: Optional[int] = None
    limits: Optional[int] = None


class ClockReader:
    """Reads the clocks of the GPU at a PCI address ("00000000:3B:00.0"). Never raises: without NVML all values are
    None.
    """

    def __init__(self, address: str, library: str = "libnvidia-ml.so.1"):
        self.nvml = self.device = None
        try:
            nvml = ctypes.CDLL(library)
            device = ctypes.c_void_p()
            if nvml.nvmlInit_v2() == 0:
                if nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(device)) == 0:
                    self.nvml, self.device = nvml, device
        except (OSError, AttributeError):  # there is no NVML, or it lacks these functions
            pass

    def read(self) -> Clocks:
        if self.nvml is None:
            return Clocks()
        return Clocks(self._mhz(SM), self._mhz(MEMORY), self._limits())

    def _mhz(self, kind: int) -> Optional[int]:
        value = ctypes.c_uint()
        try:
            result = self.nvml.nvmlDeviceGetClockInfo(self.device, kind, ctypes.byref(value))
        except AttributeError:
            return None
        return value.value if result == 0 else None

    def _limits(self) -> Optional[int]:
        bits = ctypes.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            function = getattr(self.nvml, name, None)  # the second is the older name of the first
            if function is not None:
                return bits.value if function(self.device, ctypes.byref(bits)) == 0 else None
        return None


def limit_names(limits: int) -> list[str]:
    return [LIMITS[bit] if bit < len(LIMITS) else f"bit {bit}" for bit in range(1, 64) if limits >> bit & 1]


def field(before: Clocks, after: Clocks) -> dict:
    """The field `clocks` of a row."""
    known = [one.limits for one in (before, after) if one.limits is not None]
    return {
        "sm_mhz": [before.sm_mhz, after.sm_mhz],
        "memory_mhz": [before.memory_mhz, after.memory_mhz],
        "throttle": limit_names(known[0] | known[-1]) if known else None,
    }


def pci_address(properties) -> str:
    """The PCI address in torch.cuda.get_device_properties(), in NVML's form. "" if this version of PyTorch has none."""
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    return "" if None in parts else "{:08X}:{:02X}:{:02X}.0".format(*parts)
