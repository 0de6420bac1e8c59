"""The teacher: flite, a small synthesizer with several permissively licensed voices, through its C library."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_short, c_void_p
from pathlib import Path

import numpy as np

from tools.voice.dataset import RATE

# In the order of need: a library that is loaded already satisfies those after it, wherever it was loaded from.
LIBRARIES = ("libasound.so.2", "libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1")


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", c_char_p),
        ("sample_rate", c_int),
        ("num_samples", c_int),
        ("num_channels", c_int),
        ("samples", POINTER(c_short)),
    )


class Flite:
    """One teacher voice at a time, many in a process. Not safe to call from several threads.

    `folder` holds the shared libraries; None asks the system's loader (Debian: apt-get install flite).
    Raises OSError, with what is missing, if they are not there.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        libraries = [self._load(name) for name in LIBRARIES]
        self._flite = libraries[1]
        self._flite.flite_text_to_wave.argtypes = (c_char_p, c_void_p)
        self._flite.flite_text_to_wave.restype = POINTER(_Wave)
        self._flite.delete_wave.argtypes = (POINTER(_Wave),)
        self._flite.flite_init()
        self._voices: dict[str, int] = {}

    def _load(self, name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(self._folder / name) if self._folder else name, mode=ctypes.RTLD_GLOBAL)

    def _voice(self, symbol: str) -> int:
        if symbol not in self._voices:
            register = getattr(self._load(f"libflite_{symbol}.so.1"), f"register_{symbol}")
            register.argtypes, register.restype = (c_char_p,), c_void_p
            self._voices[symbol] = register(None)
        return self._voices[symbol]

    def speak(self, text: str, symbol: str) -> np.ndarray:
        """int16 samples at RATE of one utterance in the voice of that symbol, say "cmu_us_slt"."""
        wave = self._flite.flite_text_to_wave(text.encode(), self._voice(symbol))
        if not wave:
            raise RuntimeError(f"flite made no sound of {text!r} with {symbol}")
        try:
            made = wave.contents
            if (made.sample_rate, made.num_channels) != (RATE, 1):
                raise RuntimeError(
                    f"{symbol} speaks {made.num_channels} channels at {made.sample_rate} Hz, not one at {RATE}"
                )
            return np.ctypeslib.as_array(made.samples, (made.num_samples,)).copy()
        finally:
            self._flite.delete_wave(wave)
