"""Sizes of recurrent layers that recipes may have; the native kernels are compiled for them. Engine process."""

from __future__ import annotations

from typing import Final

#: Dimensions of a delta rule's heads, and the size of a state space's state, are multiples of this.
LANES: Final = 16
#: Most dimensions of a delta rule's keys: kMaxDim of delta.h.
MAX_KEY_DIM: Final = 256
#: Greatest state of a state space, in numbers for each dimension of a head: kMaxState of scan.h.
MAX_STATE_SIZE: Final = 256
#: Most tokens that a causal convolution reads: kMaxTaps of conv.h.
MAX_TAPS: Final = 8
