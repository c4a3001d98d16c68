"""Compares what Python describes with what loaded kernels have. Engine process, once; no torch."""

from __future__ import annotations

import ctypes

from .header import places


class _Place(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


def differences(kernels: ctypes.CDLL) -> list[str]:
    """Names of structures and enumerators, and of their members, that loaded kernels have otherwise."""
    kernels.djl_abi.restype = ctypes.POINTER(_Place)
    kernels.djl_abi.argtypes = [ctypes.POINTER(ctypes.c_int)]
    count = ctypes.c_int()
    found = kernels.djl_abi(ctypes.byref(count))
    theirs = {found[i].name.decode(): (found[i].offset, found[i].size) for i in range(count.value)}
    ours = places()
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
