"""Flite, a small synthesizer that knows when it says each word: `apt install flite`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_short, c_void_p
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

RATE = 16000
VOICES = ("rms", "slt")
SEGMENTS = "R:SylStructure.{}.{}.R:Segment"  # of a word: its syllables, and their sounds


@dataclass(frozen=True, slots=True)
class Said:
    """A text as Flite says it.

    samples: float32 [n] at RATE
    words: the start and the end of each word that stands between spaces, in seconds
    """

    samples: np.ndarray
    words: tuple[tuple[float, float], ...]


class _Wave(Structure):
    _fields_ = (
        ("type", c_char_p),
        ("rate", c_int),
        ("samples", c_int),
        ("channels", c_int),
        ("data", POINTER(c_short)),
    )


@lru_cache(maxsize=256)
def say(text: str, voice: str) -> Said:
    """Speak a text with one of VOICES."""
    library = _library()
    utterance = library.flite_synth_text(text.encode("ascii"), _voice(voice))
    try:
        wave = ctypes.cast(library.utt_wave(utterance), POINTER(_Wave)).contents
        assert wave.rate == RATE
        samples = np.ctypeslib.as_array(wave.data, (wave.samples,)).astype(np.float32) / 32768
        return Said(samples, tuple(_words(library, utterance)))
    finally:
        library.delete_utterance(utterance)


def _words(library: Any, utterance: int) -> Any:
    token = library.relation_head(library.utt_relation(utterance, b"Token"))
    while token:
        spoken: list[int] = []
        word = library.item_daughter(token)
        while word:
            spoken.append(word)
            word = library.item_next(word)
        begin = library.ffeature_float(spoken[0], f"{SEGMENTS.format('daughter1', 'daughter1')}.p.end".encode())
        end = library.ffeature_float(spoken[-1], f"{SEGMENTS.format('daughtern', 'daughtern')}.end".encode())
        yield begin, end
        token = library.item_next(token)


@cache
def _library() -> Any:
    library = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
    for name in ("usenglish", "cmulex"):
        ctypes.CDLL(f"libflite_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
    for name, result, arguments in (
        ("flite_synth_text", c_void_p, (c_char_p, c_void_p)),
        ("utt_wave", c_void_p, (c_void_p,)),
        ("utt_relation", c_void_p, (c_void_p, c_char_p)),
        ("relation_head", c_void_p, (c_void_p,)),
        ("item_daughter", c_void_p, (c_void_p,)),
        ("item_next", c_void_p, (c_void_p,)),
        ("ffeature_float", c_float, (c_void_p, c_char_p)),
        ("delete_utterance", None, (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.flite_init()
    return library


@cache
def _voice(name: str) -> int:
    library = ctypes.CDLL(f"libflite_cmu_us_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
    register = getattr(library, f"register_cmu_us_{name}")
    register.restype, register.argtypes = c_void_p, (c_char_p,)
    return register(None)
