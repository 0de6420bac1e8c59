"""Objects that refer to each other, which only the garbage collector frees, and what they warn of."""

from __future__ import annotations

import gc
import types
import warnings
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

PACKAGES = {"voxcpm_grpc", "voxcpm_server", "voxcpm_gateway", "voxcpm_client", "av", "soxr"}
CODE = {
    types.FrameType: "f_code",
    types.FunctionType: "__code__",
    types.CoroutineType: "cr_code",
    types.GeneratorType: "gi_code",
    types.AsyncGeneratorType: "ag_code",
}


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the garbage collector off in a block, after a collection."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def no_garbage(packages: Container[str] = PACKAGES) -> Iterator[None]:
    """Check that a block leaves no object of our packages, of PyAV or of soxr to the garbage collector."""
    with without_collector():
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            names = Counter(map(_name, gc.garbage))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    found = {name: count for name, count in names.items() if name.partition(".")[0] in packages}
    assert not found, f"the garbage collector has to free {found}"


@contextmanager
def no_warnings() -> Iterator[None]:
    """Check that a block, and what it leaves to the garbage collector, warns of nothing."""
    gc.collect()  # what earlier tests left may warn
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not (found := [str(one.message) for one in caught]), found


def _name(one: Any) -> str:
    """The name of the type of an object, and of frames and functions that of their code."""
    attribute = CODE.get(type(one))
    if attribute is None:
        return f"{type(one).__module__}.{type(one).__qualname__}"
    code: types.CodeType = getattr(one, attribute)
    package = next((part for part in code.co_filename.split("/") if part in PACKAGES), "")
    return f"{package}.{code.co_qualname} ({type(one).__name__})"
