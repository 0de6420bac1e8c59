"""Selects Triton's interpreter on a host without a GPU; import it before Triton.

It spares the interpreter two kinds of work that change no result and take half of its time:

* It has patched the functions of `triton.language` again for each launch, and for each call of a function of
  a kernel, such as `tl.sum`. They stay patched.
* It has computed each sum and product of integers again with 64 bits, for an assertion that only debugging makes.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Callable

import torch


def spare_work() -> None:
    """Replace what the interpreter repeats; nothing in a Triton whose interpreter lacks these names."""
    import triton.language as tl
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in ("_patch_lang", "_LangPatchScope", "interpreter_builder")):
        return
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    patch_lang, patched = interpreter._patch_lang, set[int]()

    @functools.cache
    def languages(function: Callable[..., object]) -> frozenset[int]:
        return frozenset(id(module) for module in function.__globals__.values() if module is tl or module is tl.core)

    def patch_once(function: Callable[..., object]) -> object:
        if not languages(function) <= patched:
            patch_lang(function)
            patched.update(languages(function))
        return interpreter._LangPatchScope()  # of no changes: nothing is restored

    interpreter._patch_lang = patch_once


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton"):
        spare_work()
