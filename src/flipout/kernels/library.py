"""The kernels in C, as a shared library that is called with pointers to the data of tensors."""

from __future__ import annotations

import ctypes
import threading
import warnings
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .geometry import Convolution, Layout

FILE = Path(__file__).with_name("_kernels.so")


INSTRUCTIONS = ("avx512", "avx2", "plain")
"""The instruction sets that the kernels are built for, the best first. On ARM, NEON is plain."""


def known_instructions() -> tuple[str, ...]:
    """The instruction sets of this machine, as torch sees it."""
    best = {"AVX512": 0, "AVX2": 1}.get(torch.backends.cpu.get_cpu_capability(), 2)
    return INSTRUCTIONS[best:]


class MissingKernelsWarning(UserWarning):
    """The package was installed without its kernels in C. Everything is computed densely."""


class Matrix(Structure):
    """The structure of the same name in c/kernels.h."""

    _fields_ = (("starts", c_void_p), ("offsets", c_void_p), ("values", c_void_p))


class Size(Structure):
    """The structure of the same name in c/kernels.h."""

    _fields_ = (
        *(("input", Layout), ("output", Layout), ("length", c_int64)),
        *(("images", c_int64), ("lanes", c_int64), ("threads", c_int64)),
    )


class KernelCall(Structure):
    """The structure `Call` in c/kernels.h."""

    _fields_ = (
        *(("size", c_void_p), ("forward", Matrix), ("transposed", Matrix), ("positions", c_void_p)),
        *(("input", c_void_p), ("bias", c_void_p), ("output_gradient", c_void_p)),
        ("addend", c_void_p),
        *(("output", c_void_p), ("input_gradient", c_void_p), ("weight_gradient", c_void_p)),
        *(("scratch", c_void_p), ("clip", c_int64)),
    )


class Step(Structure):
    """The structure of the same name in c/step.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "columns", "threads")),
        *((name, c_void_p) for name in ("values", "gradients", "mask", "low", "high", "hidden")),
        *((name, c_void_p) for name in ("threshold", "ceiling", "faint", "unit_factors", "sigma")),
        *((name, c_void_p) for name in ("factors", "addends", "starts", "offsets", "sums")),
        ("total", c_double),
        *((name, c_void_p) for name in ("theta", "noise", "latent", "latent_gradients", "first", "second")),
        ("each", c_int64),
        *((name, c_float) for name in ("rate", "trust", "one_sigma", "one_unit_factor", "lambda", "bias")),
        *(
            (name, c_int32)
            for name in ("one_factor", "one_addend", "amount", "fade", "all_count", "zeroes", "keep_pruned")
        ),
    )


class Norm(Structure):
    """The structure of the same name in c/norm.h."""

    _fields_ = (
        *((name, c_int64) for name in ("images", "channels", "pixels", "threads")),
        *((name, c_void_p) for name in ("input", "weight", "bias", "output", "mean", "variance", "scale")),
        ("epsilon", c_double),
        *((name, c_void_p) for name in ("output_gradient", "input_gradient", "weight_gradient", "bias_gradient")),
    )


STRUCTURES = Size, KernelCall, Step, Norm
"""In the order of `flipout_size_of` in c/kernels.c."""


class Library:
    """The kernels in C: the functions of the shared library."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        size = getattr(library, "flipout_size_of", lambda number: 0)  # of a structure: see c/kernels.c
        if [size(number) for number in range(len(STRUCTURES))] != [ctypes.sizeof(each) for each in STRUCTURES]:
            raise OSError(f"{path} was built from another version of the kernels")
        self._scratch_size, self._run = library.flipout_scratch_size, library.flipout_run
        self._gather = library.flipout_gather
        self._scratch_size.argtypes, self._scratch_size.restype = (POINTER(KernelCall),), c_int64
        self._run.argtypes, self._run.restype = (POINTER(KernelCall),), None
        self._gather.argtypes, self._gather.restype = (c_void_p, c_void_p, c_void_p, c_int64), c_int
        self._choose = library.flipout_choose
        self._choose.argtypes, self._choose.restype = (c_char_p,), c_int
        self.step_loop = library.flipout_step
        self.step_loop.argtypes, self.step_loop.restype = (c_void_p, c_int), None
        self.norm = library.flipout_norm
        self.norm.argtypes, self.norm.restype = (POINTER(Norm),), None
        self._team = library.flipout_team
        self._team.argtypes, self._team.restype = (c_void_p,), None
        self.use_threads_of_torch(True)
        self.instructions = next(name for name in INSTRUCTIONS if self.choose_instructions(name))
        self._local = threading.local()

    def choose_instructions(self, name: str) -> bool:
        """Use an instruction set; return whether this machine has it, and the kernels were built for it."""
        return name in known_instructions() and bool(self._choose(name.encode()))

    def use_threads_of_torch(self, wanted: bool) -> None:
        """Work on the threads of torch's OpenMP library where that is possible, or on threads that each call starts.

        Torch's threads wait for work by spinning, so other threads beside them would have to share their cores.
        """
        self._team(_openmp_team() if wanted else None)

    def gather(self, values: Tensor, dense: Tensor, positions: Tensor) -> bool:
        """Copy the values at some positions of a dense tensor; return whether they are all finite."""
        return bool(self._gather(values.data_ptr(), dense.data_ptr(), positions.data_ptr(), len(positions)))

    def scratch_size(self, call: KernelCall) -> int:
        """The floats of scratch memory that a call needs."""
        return int(self._scratch_size(byref(call)))

    def run(self, call: KernelCall, floats: int | None = None) -> None:
        """Compute what a call asks for, with memory that this thread keeps."""
        if floats is None:
            floats = self.scratch_size(call)
        scratch = getattr(self._local, "scratch", None)
        if scratch is None or scratch.numel() < floats + 16:
            scratch = self._local.scratch = torch.empty(floats + 16)
        address = scratch.data_ptr()
        call.scratch = address + -address % 64
        self._run(byref(call))


@lru_cache(maxsize=4096)
def size_of(convolution: Convolution, images: int, threads: int) -> Size:
    """The size of a call with so many images."""
    lanes = convolution.lanes(images)
    return Size(convolution.input, convolution.output, convolution.length, images, lanes, threads)


def _openmp_team() -> int | None:
    """The address of GOMP_parallel, if torch has loaded an OpenMP library that has it."""
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another OpenMP library or none, or Windows
        return None
    return ctypes.cast(function, c_void_p).value


@lru_cache(maxsize=1)
def find_kernels() -> Library | None:
    """The kernels, or None if the package was built without a compiler, or from another version."""
    try:
        return Library(FILE)
    except OSError:
        return None


def kernels() -> Library:
    """The kernels, where they are known to exist."""
    found = find_kernels()
    assert found is not None, "the kernels were not built"
    return found


@lru_cache(maxsize=1)
def _warn_once() -> None:
    warnings.warn(
        f"the fast kernels for sparse layers are missing ({FILE.name}), or were built from another version: layers are "
        "computed densely. Install a C compiler such as gcc or clang, and run `python -m flipout.kernels.build`",
        MissingKernelsWarning,
        stacklevel=4,
    )


def has_kernels() -> bool:
    """Return whether the kernels exist; if they do not, warn once."""
    if find_kernels() is None:
        _warn_once()
        return False
    return True
