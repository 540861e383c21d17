"""The exceptions of rapt: one class for each rapt_status. Each is also a subclass of a matching Python exception."""

from . import _core


class Error(RuntimeError):
    """Base class. str() gives the library's error sentence."""


class InvalidArgument(Error, ValueError):
    """The call is wrong; the sentence names argument, value and rule."""


class Unsupported(Error, NotImplementedError):
    """The call is legal, but no kernel of this build supports it."""


class OutOfMemory(Error, MemoryError):
    """Host or device memory ran out."""


class EnvironmentLacking(Error):
    """The driver, NVRTC, the cache or a file is missing or unusable."""


class DeviceError(Error):
    """The CUDA driver reported a failure."""


class InternalError(Error):
    """A defect of rapt: please report it."""


_core.set_errors((Error, InvalidArgument, Unsupported, OutOfMemory, EnvironmentLacking, DeviceError, InternalError))
