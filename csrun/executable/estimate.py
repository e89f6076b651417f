"""Estimates of a plan before anything has run: the placement of layers, and their speed."""

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
    """Fabric region of a layer of a replica; in weight streaming each layer uses the whole
    fabric.
    """

    layer: str
    rectangle: Rectangle
    replica: int = 0


class LayerEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimate for one layer alone.

    compute_utilization: share of its PEs' peak that it computes, 0 to 1.
    """

    layer: str
    active_pes: int
    samples_per_sec: float
    compute_samples_per_sec: float
    transmission_samples_per_sec: float
    compute_utilization: float


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimate for the whole system.

    active_pes: share of the usable PEs that have a layer, 0 to 1.
    compute_utilization: share of the system's peak, 0 to 1.
    """

    samples_per_sec: float
    compute_samples_per_sec: float
    transmission_samples_per_sec: float
    active_pes: float
    compute_utilization: float
    layers: tuple[LayerEstimate, ...]
