"""Attention's machine code, with the functions of products that it calls."""

from collections.abc import Sequence

from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.emit.llvm.products.product_functions import product_code
from csrun.executable import machine_code
from csrun.executable.products import Tile, tile_of


def build(codes: Sequence[KernelCode], tile: Tile | None = None) -> machine_code.MachineCode:
    """The loaded functions of kernels; tile: that of the products, the host's if none is given."""
    products = product_code(tile or tile_of(machine_code.host()))
    declared = dict(products.declared)
    for code in codes:
        declared |= code.declared
    text = "\n\n".join([products.text, *(code.text for code in codes), *declared.values()])
    return machine_code.MachineCode([machine_code.build(text + "\n")])
