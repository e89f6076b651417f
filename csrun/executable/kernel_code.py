"""Machine code of a program's kernels: files in the compile directory, loading, and binding.

`kernels.ll` is the LLVM IR of the kernels. `common.ll` is that of matrix products and the thread
pool, equal for all programs. `kernels.o` and `common.o` are object files built from them for the
CPU that the manifest names. For another CPU, or if a file is damaged, they are rebuilt; without
llvmlite the program's NumPy functions run.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from csrun.executable import bfloat16, machine_code
from csrun.executable.arrays import Array
from csrun.executable.bound_kernel import KernelBinder, Workspace
from csrun.executable.bound_product import ProductBinder
from csrun.executable.kernel_signature import (
    KernelArray,
    KernelManifest,
    KernelSignature,
    ProductSignature,
)
from csrun.executable.machine_code import MachineCode
from csrun.executable.object_cache import ObjectCache
from csrun.executable.products import (
    EXPORTED,
    PACKED_BYTES,
    SCRATCH_BYTES,
    tile_of,
)
from csrun.executable.team import Team, empty, team_of

MODULES = ("common", "kernels")
MACHINE_CODE_FILES = tuple(f"{module}.{kind}" for module in MODULES for kind in ("ll", "o"))
NUMPY, LLVM = "numpy", "llvm"  # kinds of kernels

log = logging.getLogger("csrun")

_objects: ObjectCache | None = None


@dataclass(frozen=True)
class KernelFiles:
    """Machine code of a compile: signatures, and the IR and object of each module.

    texts, images: in the order of MODULES; the image of a damaged object is None.
    """

    manifest: KernelManifest
    texts: tuple[str, ...]
    images: tuple[bytes | None, ...]

    @classmethod
    def build(
        cls,
        texts: tuple[str, ...],
        kernels: Mapping[str, KernelSignature],
        products: Mapping[str, ProductSignature],
        instructions: bfloat16.Instructions | None = None,
    ) -> "KernelFiles":
        """Build the objects for this host."""
        target = machine_code.host()
        manifest = KernelManifest(target, dict(kernels), dict(products), instructions)
        return cls(manifest, texts, tuple(map(_build, texts)))

    @classmethod
    def of_files(cls, manifest: KernelManifest, files: Mapping[str, bytes | None]) -> "KernelFiles":
        """Decode the machine code of a compile's files; a damaged object is None.

        Raises: ValueError without the IR
        """
        texts = []
        for module in MODULES:
            if (text := files[f"{module}.ll"]) is None:
                raise ValueError(f"no {module}.ll")
            texts.append(text.decode())
        return cls(manifest, tuple(texts), tuple(files[f"{module}.o"] for module in MODULES))

    @property
    def files(self) -> dict[str, str | bytes]:
        """Return the contents of the files, by name."""
        found: dict[str, str | bytes] = {}
        for module, text, image in zip(MODULES, self.texts, self.images, strict=True):
            assert image is not None, "it was built"
            found |= {f"{module}.ll": text, f"{module}.o": image}
        return found

    @property
    def functions(self) -> set[str]:
        """Names of the functions that have machine code."""
        return {*self.manifest.kernels, *self.manifest.products}

    def replace_functions(self, namespace: dict[str, Any], directory: Path, threads: int) -> None:
        """Replace the NumPy functions of a program by machine code, if this host can run it."""
        if not machine_code.is_supported():
            _log_once(f"{directory}: kernels run in NumPy: {machine_code.missing()}")
            return
        code = self._loaded(directory)
        workspace = self._workspace(code, team_of(code, threads))
        for name, signature in self.manifest.kernels.items():
            namespace[name] = KernelBinder(workspace, signature, namespace[name])
        for name, product in self.manifest.products.items():
            namespace[name] = ProductBinder(workspace, product, namespace[name])

    def product_call(
        self, directory: Path, arrays: tuple[Array, Array, Array], threads: int, in_pairs: bool
    ) -> Callable[[], None]:
        """A call of out = a @ b, float32 arrays, by the code of this program's products.

        in_pairs: by the manifest's instructions; a and b are numbers of bfloat16
        """
        code = self._loaded(directory)
        a, b, out = (KernelArray(n, False, each.dtype.name) for n, each in enumerate(arrays))
        signature = ProductSignature(a, b, out, in_pairs=in_pairs)
        binder = ProductBinder(self._workspace(code, team_of(code, threads)), signature, numpy_call)
        return binder(*arrays)

    def _workspace(self, code: MachineCode, team: Team | None) -> Workspace:
        products = bool(self.manifest.products)
        kernels = self.manifest.kernels.values()
        own = [signature.scratch_bytes for signature in kernels]
        nbytes = max([*own, SCRATCH_BYTES if products else 0])
        scratch = [empty(nbytes) for _ in range(1 if team is None else team.threads)]
        parts = empty(max((signature.parts_bytes for signature in kernels), default=0))
        packed = empty(PACKED_BYTES if products else 0)
        tile, pairs = tile_of(self.manifest.target), None
        if (instructions := self.manifest.instructions) is not None:
            if bfloat16.has(instructions):
                pairs = bfloat16.TILES[instructions]
            else:
                _log_once(
                    "products of bfloat16 are computed in float32, which may change the last "
                    f"digits: this machine has no {bfloat16.TITLES[instructions]}"
                )
        return Workspace(code, team, scratch, parts, packed, tile, pairs)

    def _loaded(self, directory: Path) -> MachineCode:
        is_of_host = self.manifest.target == machine_code.host()
        images = []
        for module, text, image in zip(MODULES, self.texts, self.images, strict=True):
            if image is None or not is_of_host:
                why = "damaged" if image is None else "for another CPU"
                _log_once(f"{directory / module}.o: {why}, built again for this process")
                image = _build(text)
            images.append(image)
        return _load(tuple(images))


def numpy_call(a: Array, b: Array, out: Array) -> Callable[[], None]:
    """The call of out = a @ b by NumPy."""

    def call() -> None:
        np.matmul(a, b, out=out)

    return call


@lru_cache(maxsize=8)
def _load(images: tuple[bytes, ...]) -> MachineCode:
    return MachineCode(images, EXPORTED)


def cache_objects(folder: Path) -> None:
    """From now on, cache the objects that this process builds in a folder, for later processes."""
    global _objects
    _objects = ObjectCache(folder)


# Programs share a module, and those of a loop share many kernels.
@lru_cache(maxsize=16)
def _build(text: str) -> bytes:
    build = partial(machine_code.build, text)
    if _objects is None:
        return build()
    return _objects.built(f"{machine_code.builder()}\n{text}", build)


@lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    log.info(text)
