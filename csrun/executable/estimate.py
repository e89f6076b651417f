"""Estimate of a plan, before anything has run: where layers lie, and how fast they are."""

import msgspec


class Rectangle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEs of the fabric: columns x to x + width, rows y to y + height, ends excluded."""

    x: int
    y: int
    width: int
    height: int

    @property
    def pes(self) -> int:
        return self.width * self.height


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fabric region of a layer of a replica; in weight streaming each layer has all of it."""

    layer: str
    rectangle: Rectangle
    replica: int = 0


class LayerEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimate for one layer, taken alone.

    compute_utilization: share, 0 to 1, of what its PEs could compute meanwhile.
    """

    layer: str
    active_pes: int
    samples_per_sec: float
    compute_samples_per_sec: float
    transmission_samples_per_sec: float
    compute_utilization: float


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimate for the system, before anything has run.

    active_pes: share, 0 to 1, of the usable PEs; compute_utilization: share of the peak.
    """

    samples_per_sec: float
    compute_samples_per_sec: float
    transmission_samples_per_sec: float
    active_pes: float
    compute_utilization: float
    layers: tuple[LayerEstimate, ...]
