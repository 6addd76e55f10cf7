"""Arrays as bytes for the page: one after the other, each at a multiple of four so that a browser can view it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Pack:
    parts: list[bytes] = field(default_factory=list)
    length: int = 0

    def add(self, array: np.ndarray) -> int:
        """Where the array begins."""
        begins = self.length
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        data += bytes(-len(data) % 4)
        self.parts.append(data)
        self.length += len(data)
        return begins

    def bytes(self) -> bytes:
        return b"".join(self.parts)
