"""The frameworks whose arrays rapt accepts, for tests that run the same on each. Missing ones are skipped."""

import numpy as np
import pytest

import rapt

FP8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "sim8": "uint8"}


class Framework:
    """NumPy, JAX, CuPy or PyTorch on a device, with a few common operations."""

    def __init__(self, name, device="cpu"):
        self.name, self.device = name, device
        self.errors = Exception if name == "jax" else rapt.Error  # XLA has its own exception class for errors of a call
        self.module = pytest.importorskip("jax.numpy" if name == "jax" else name)
        if name == "torch" and device == "cuda" and not self.module.cuda.is_available():
            pytest.skip("no GPU")
        if name == "cupy":
            try:
                self.module.cuda.runtime.getDeviceCount()
            except self.module.cuda.runtime.CUDARuntimeError:
                pytest.skip("no GPU")

    def array(self, x, dtype=None):
        """A float or integer NumPy array as an array of this framework, with the dtype of that name."""
        if self.name == "torch":
            made = self.module.from_numpy(np.array(x)).to(self.device)
            return made if dtype is None else made.to(getattr(self.module, dtype))
        if self.name == "numpy":
            return x if dtype is None else x.astype(self.dtype(dtype))
        made = self.module.asarray(x)
        return made if dtype is None else made.astype(self.dtype(dtype))

    def dtype(self, name):
        """The framework's own object for a dtype."""
        if self.name in ("torch", "jax"):
            return getattr(self.module, name)
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            found = getattr(pytest.importorskip("ml_dtypes"), name)
            if not self._takes(found):
                pytest.skip(f"CuPy {self.module.__version__} has no {name}")
            return found
        return np.dtype(name)

    def _takes(self, dtype):
        """True if this framework has the types of ml_dtypes, which only newer versions of CuPy have."""
        try:
            zeros = self.module.zeros(4, np.uint8)
            return bool((zeros.view(dtype).astype(np.float32) == 0).all()) if self.name == "cupy" else True
        except Exception:
            return False

    def has(self, name):
        """True if this framework has the dtype."""
        try:
            return self.dtype(name) is not None
        except pytest.skip.Exception:
            return False

    def numpy(self, a):
        """The array's numbers in float64."""
        if self.name == "torch":
            return a.detach().cpu().double().numpy()
        return np.asarray(a.get() if self.name == "cupy" else a).astype(np.float64)

    def bytes(self, codes):
        """8-bit codes as uint8, for any type."""
        if self.name == "torch":
            return codes.detach().cpu().view(self.module.uint8).numpy()
        return np.asarray(codes.get() if self.name == "cupy" else codes).view(np.uint8)

    def code_type(self, dtype):
        """The name of the codes' type if none was requested."""
        return FP8[dtype] if self.name in ("torch", "jax") else "uint8"

    def dtype_of(self, a):
        return str(a.dtype).removeprefix("torch.")

    def swap(self, a):
        """[batch, seqlen, heads, dim] of [batch, heads, seqlen, dim], contiguous."""
        a = a.swapaxes(1, 2)
        return a.contiguous() if self.name == "torch" else a if self.name == "jax" else self.module.ascontiguousarray(a)

    def empty(self, shape, dtype):
        if self.name == "torch":
            return self.module.zeros(shape, dtype=getattr(self.module, dtype), device=self.device)
        return self.module.zeros(shape, self.dtype(dtype))


ALL = [("numpy", "cpu"), ("torch", "cpu"), ("torch", "cuda"), ("jax", "any"), ("cupy", "cuda")]


@pytest.fixture(params=ALL, ids=lambda pair: "-".join(pair))
def framework(request):
    return Framework(*request.param)
