"""Compares the package's own declarations of foreign structs (python/src/dlpack.h, xla.h) with the headers of PyTorch
and jaxlib: compiles both and compares sizes and offsets. Skipped if a source, compiler or header is missing.
"""

import pathlib
import shutil
import subprocess

import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "python" / "src"
COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(not SOURCES.is_dir() or COMPILER is None, reason="no sources or no compiler")


def compile_checks(tmp_path, ours, theirs, include, sizes, offsets):
    checks = [f"static_assert(sizeof(rapt::python::{a}) == sizeof({b}));" for a, b in sizes]
    checks += [f"static_assert(offsetof(rapt::python::{a}, {f}) == offsetof({b}, {g}));" for a, f, b, g in offsets]
    source = tmp_path / "abi.cpp"
    source.write_text(f'#include <cstddef>\n#include "{ours}"\n#include <{theirs}>\n' + "\n".join(checks) + "\n")
    done = subprocess.run(
        [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{SOURCES}", *(f"-I{path}" for path in include), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_dlpack(tmp_path):
    torch = pytest.importorskip("torch")
    include = pathlib.Path(torch.__file__).parent / "include"
    header = (include / "ATen" / "dlpack.h").read_text() if (include / "ATen" / "dlpack.h").exists() else ""
    if "DLPackExchangeAPI" not in header:
        pytest.skip("this PyTorch has no exchange API")
    fields = ("data", "device", "ndim", "dtype", "shape", "strides", "byte_offset")
    compile_checks(
        tmp_path,
        "dlpack.h",
        "ATen/dlpack.h",
        [include],
        [("DLTensor", "DLTensor"), ("DLPackExchange", "DLPackExchangeAPI")],
        [("DLTensor", f, "DLTensor", f) for f in fields]
        + [
            ("DLPackExchange", f, "DLPackExchangeAPI", f)
            for f in ("header", "dltensor_from_py_object_no_sync", "current_work_stream")
        ],
    )


def test_xla(tmp_path):
    jax = pytest.importorskip("jax")
    sizes = {
        "XlaBuffer": "XLA_FFI_Buffer",
        "XlaArray": "XLA_FFI_Array",
        "XlaBuffers": "XLA_FFI_Args",
        "XlaAttributes": "XLA_FFI_Attrs",
        "XlaErrorArgs": "XLA_FFI_Error_Create_Args",
        "XlaStreamArgs": "XLA_FFI_Stream_Get_Args",
        "XlaVersion": "XLA_FFI_Api_Version",
        "XlaOrdinalArgs": "XLA_FFI_DeviceOrdinal_Get_Args",
        "XlaMetadataExtension": "XLA_FFI_Metadata_Extension",
    }
    frame, api = "XLA_FFI_CallFrame", "XLA_FFI_Api"
    offsets = [
        ("XlaCallFrame", ours, frame, theirs)
        for ours, theirs in (
            ("api", "api"),
            ("context", "ctx"),
            ("stage", "stage"),
            ("args", "args"),
            ("results", "rets"),
            ("attributes", "attrs"),
        )
    ]
    offsets += [
        ("XlaApi", ours, api, theirs)
        for ours, theirs in (
            ("version", "api_version"),
            ("error_create", "XLA_FFI_Error_Create"),
            ("stream_get", "XLA_FFI_Stream_Get"),
            ("device_ordinal_get", "XLA_FFI_DeviceOrdinal_Get"),
        )
    ]
    offsets += [
        ("XlaMetadata", "version", "XLA_FFI_Metadata", "api_version"),
        ("XlaMetadata", "traits", "XLA_FFI_Metadata", "traits"),
    ]
    compile_checks(tmp_path, "xla.h", "xla/ffi/api/c_api.h", [jax.ffi.include_dir()], sizes.items(), offsets)
