"""What a run took: results say so beside their numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

try:
    import resource
except ImportError:  # Windows has no such counts
    resource = None  # type: ignore[assignment]


def cost(log: Sequence[dict[str, Any]], device: torch.device) -> dict[str, float | None]:
    """`seconds` of all steps, evaluations not counted, and the `peak_memory` in bytes of this process so far."""
    return {"seconds": sum(row.get("seconds", 0.0) for row in log), "peak_memory": peak_memory(device)}


def peak_memory(device: torch.device) -> int | None:
    """Of the GPU where there is one, else of the process; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
