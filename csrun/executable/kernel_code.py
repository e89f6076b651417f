"""Machine code of a program's kernels: files in the compile directory, loading, and binding.

`kernels.ll` is the LLVM IR of the kernels. `common.ll` is that of matrix products and the thread
pool, equal for all programs. `common.o` and the object files in `kernels.a`, one for each function
of `kernels.ll`, are built from them for the CPU that the manifest names. For another CPU, or if a
file is damaged, they are rebuilt; without llvmlite the program's NumPy functions run.

A function is built once for all programs of a process that have it and, with a cache, once for all
processes of the account.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from csrun.executable import bfloat16, machine_code
from csrun.executable.archive import ARCHIVE, archive
from csrun.executable.arrays import Array, empty
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
from csrun.executable.team import Team, team_of

TEXTS = ("common.ll", "kernels.ll")
IMAGES = ("common.o", "kernels.a")
MACHINE_CODE_FILES = (*TEXTS, *IMAGES)
NUMPY, LLVM = "numpy", "llvm"  # kinds of kernels

log = logging.getLogger("csrun")

_objects: ObjectCache | None = None


@dataclass(frozen=True)
class KernelFiles:
    """Machine code of a compile: signatures, and the IR and image of each module.

    texts, images: contents of TEXTS and IMAGES; a damaged image is None.
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
        """Build the images for this host."""
        target = machine_code.host()
        manifest = KernelManifest(target, dict(kernels), dict(products), instructions)
        return cls(manifest, texts, tuple(map(_build, IMAGES, texts)))

    @classmethod
    def of_files(cls, manifest: KernelManifest, files: Mapping[str, bytes | None]) -> "KernelFiles":
        """Decode the machine code of a compile's files; a damaged image is None.

        Raises: ValueError without the IR
        """
        texts = []
        for name in TEXTS:
            if (text := files[name]) is None:
                raise ValueError(f"no {name}")
            texts.append(text.decode())
        return cls(manifest, tuple(texts), tuple(files[name] for name in IMAGES))

    @property
    def files(self) -> dict[str, str | bytes]:
        """Return the contents of the files, by name."""
        found: dict[str, str | bytes] = dict(zip(TEXTS, self.texts, strict=True))
        for name, image in zip(IMAGES, self.images, strict=True):
            assert image is not None, "it was built"
            found[name] = image
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
        for name, text, image in zip(IMAGES, self.texts, self.images, strict=True):
            if image is None or not is_of_host:
                why = "damaged" if image is None else "for another CPU"
                _log_once(f"{directory / name}: {why}, rebuilt for this process")
                image = _build(name, text)
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


def _build(name: str, text: str) -> bytes:
    """Return the image of this name, built from its IR."""
    if not name.endswith(ARCHIVE):
        return built(text)
    functions = machine_code.split(text)
    image = archive({name: built(each) for name, each in functions.items()})
    if _objects is not None:
        _objects.trim()
    return image


# Programs share the common module, and those of a loop most kernels. An object has about 3 KB, its
# text 10.
@lru_cache(maxsize=1024)
def built(text: str) -> bytes:
    """Return the object file of a module of LLVM IR, from a cache if it was built before."""
    build = partial(machine_code.build, text)
    if _objects is None:
        return build()
    return _objects.built(f"{machine_code.builder()}\n{machine_code.host_text(text)}", build)


@lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    log.info(text)
