"""LayerPlacement: where the layers of a model are. Identity, memory, threads and sampling on devices ask it."""

from __future__ import annotations

from dataclasses import dataclass

from operators.settings.runtime import EngineSettings

HOST = "CPU"
"""The name of what is no device, as llama.cpp has it."""


@dataclass(frozen=True)
class LayerPlacement:
    """Where the layers of a model are, and so their KV cache: the last `gpu_layers` of `layers` on devices.

    Args:
        gpu_layers: layers on devices, from the last one on. What makes logits counts as one, behind all others.
        layers: that the model has, that one included; 0: not known.
        devices: names of the devices that are used, as "CUDA0", in the order of the layers; none: all is on the CPU.
        counts: layers on each of them.
        elsewhere: tensors that are not where their layer is: a regular expression of names, and a device or HOST. The
            first that fits a name holds.
    """

    gpu_layers: int = 0
    layers: int = 0
    devices: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()

    @property
    def on_cpu(self) -> bool:
        """True if no device is used at all."""
        return not self.devices

    @property
    def is_whole(self) -> bool:
        """True if every layer is on a device with all its tensors, so that the CPU multiplies with none."""
        return not self.on_cpu and self.gpu_layers == self.layers and not any(to == HOST for _, to in self.elsewhere)

    def computes_all(self, settings: EngineSettings) -> bool:
        """Return whether devices compute all of a call but for reading tables, so that threads of the CPU beyond one
        gain nothing, and change no bit."""
        return self.is_whole and settings.kv_offload

    def device_of(self, layer: int) -> str:
        """Return the name of what computes a layer: a device, or HOST. The number `layers` - 1 is what makes logits."""
        place = layer - (self.layers - self.gpu_layers)
        for name, count in zip(self.devices, self.counts, strict=True):
            if 0 <= place < count:
                return name
            place -= count
        return HOST

    def __str__(self) -> str:
        """Say it in words, the same for equal placements: a part of identities."""
        if self.on_cpu:
            return HOST
        each = ", ".join(f"{count} on {name}" for name, count in zip(self.devices, self.counts, strict=True))
        moved = "".join(f", {pattern} on {to}" for pattern, to in self.elsewhere)
        return f"{self.gpu_layers} of {self.layers} layers ({each}{moved})"


ON_CPU = LayerPlacement()
