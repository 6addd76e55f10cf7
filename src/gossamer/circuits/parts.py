"""Finished batches, kept on disk so that an interrupted job goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gossamer.files import write_whole

Part = dict[str, Tensor]


class Parts:
    """The parts of each stage in the order they were finished; without a folder they live in memory only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.stages: dict[str, list[Part]] = {}
        if folder is not None and folder.is_dir():
            for path in sorted(folder.glob("*.safetensors")):
                try:
                    part = load_file(path)
                except SafetensorError:  # not written by us; what it stood for is done again
                    path.unlink()
                    continue
                self.stages.setdefault(path.name.split("-")[0], []).append(part)

    def __getitem__(self, stage: str) -> list[Part]:
        return self.stages.setdefault(stage, [])

    def done(self, stage: str) -> set[int]:
        """The prompts that this stage is done with."""
        return {int(row) for part in self[stage] for row in part["rows"]}

    def add(self, stage: str, part: Part) -> None:
        parts = self[stage]
        parts.append({name: tensor.detach().cpu().contiguous() for name, tensor in part.items()})
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{stage}-{int(part['rows'].min()):06}.safetensors"  # no two parts share a prompt
            write_whole(path, lambda temporary: save_file(parts[-1], temporary))
