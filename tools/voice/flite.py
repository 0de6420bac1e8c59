"""The teacher: flite, a small synthesizer with several permissively licensed voices, through its C library."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_short, c_void_p
from pathlib import Path

import numpy as np

from tools.voice.dataset import RATE

# In the order of their dependencies: a library that is loaded already serves those after it, from any folder.
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
    """The voices of flite. Not safe for calls from several threads.

    folder: of the shared libraries; None for those of the system (Debian: apt-get install flite). Raises OSError with
    the name of a library that is missing.
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
        """Speak a text: int16 samples at RATE. symbol: of the voice, such as "cmu_us_slt"."""
        wave = self._flite.flite_text_to_wave(text.encode(), self._voice(symbol))
        if not wave:
            raise RuntimeError(f"flite returned no audio for {text!r} with {symbol}")
        try:
            made = wave.contents
            if (made.sample_rate, made.num_channels) != (RATE, 1):
                raise RuntimeError(
                    f"{symbol} has {made.num_channels} channels at {made.sample_rate} Hz, not one at {RATE}"
                )
            return np.ctypeslib.as_array(made.samples, (made.num_samples,)).copy()
        finally:
            self._flite.delete_wave(wave)
