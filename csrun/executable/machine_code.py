"""Machine code of a program's kernels: build from LLVM IR, verify, load. The only user of llvmlite.

Results must not depend on LLVM's choices: the IR has vectors of a fixed length for any host, and no
operation that LLVM may evaluate in more than one way.
"""

import re
from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from csrun.executable.archive import is_archive, members
from csrun.executable.host_functions import for_host

REQUIRED = ("fma", "avx2")  # without FMA instructions a fused multiply-add is a library call
SPEED_LEVEL = 2
LEFT_OUT = ("loop_vectorization", "slp_vectorization", "loop_unrolling")
_INTERNAL = "define internal "
_WAYS_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index0/ways_of_associativity")
_FUNCTION = re.compile(r"^define .*?^}$", re.MULTILINE | re.DOTALL)
_GLOBAL = re.compile(r"^((?:declare [^@\n]*)?@([\w.]+).*)$", re.MULTILINE)
_NAME = re.compile(r"@([\w.]+)")


class MachineCode:
    """Loaded functions of images; they stay loaded as long as this object exists.

    An image is an object file, or an archive of them by their functions. It may call the `exported`
    functions of the object files before it.
    """

    def __init__(self, images: Iterable[bytes], exported: Iterable[str] = ()) -> None:
        self._engines: list[Any] = []  # of object files
        self._members: dict[str, Any] = {}  # engine of each function of an archive
        symbols: dict[str, int] = {}
        for image in images:
            known = tuple(symbols.items())
            if is_archive(image):
                self._members |= {n: _loaded(each, known) for n, each in members(image).items()}
                continue
            engine = _loaded(image, known)
            self._engines.append(engine)
            found = {name: engine.get_function_address(name) for name in exported}
            symbols |= {name: address for name, address in found.items() if address}

    def address(self, name: str) -> int:
        """The address of a function."""
        engines = [self._members[name]] if name in self._members else self._engines
        found = (engine.get_function_address(name) for engine in engines)
        address: int = next((each for each in found if each), 0)
        if not address:
            raise ValueError(f"no function {name}")
        return address

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        """Return a function, given the types of its arguments."""
        return CFUNCTYPE(None, *arguments)(self.address(name))


@lru_cache(maxsize=512)  # programs share objects
def _loaded(image: bytes, symbols: tuple[tuple[str, int], ...]) -> Any:
    """Return an engine with the functions of an object file, which calls these symbols.

    An engine has one object: LLVM takes the offset table of the first one for those of others.
    """
    binding, machine = _target()
    module = binding.parse_assembly("")
    module.triple = machine.triple
    engine = binding.create_mcjit_compiler(module, machine)
    engine.remove_module(module)  # it would be compiled, which takes longer than the rest
    for name, address in symbols:
        binding.add_symbol(name, address)
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(image))
    engine.finalize_object()
    return engine


def is_installed() -> bool:
    """Return whether llvmlite is installed."""
    return find_spec("llvmlite") is not None


@cache
def host() -> str:
    """Return the host's CPU and its features, which object files are built for."""
    binding = _binding()
    return f"{binding.get_host_cpu_name()} {_features(binding)}"


@cache
def cache_ways() -> int:
    """Return the lines in a set of this host's L1 data cache; 8, the least of CPUs with AVX2, if
    the system does not say.
    """
    try:
        return int(_WAYS_FILE.read_text())
    except (OSError, ValueError):
        return 8


def host_text(text: str) -> str:
    """Return the module that is built here for a module, with the bodies for this host's CPU."""
    return for_host(text, host())


def builder() -> str:
    """Return what a build depends on besides the host's text: LLVM, its options, the host."""
    import llvmlite

    version = f"llvmlite {llvmlite.__version__} LLVM {_binding().llvm_version_info}"
    return f"{version} {SPEED_LEVEL} without {LEFT_OUT} {host()}"


@cache
def is_supported() -> bool:
    """Return whether machine code can run here: llvmlite is installed, and the CPU has FMA and
    AVX2.
    """
    if not is_installed():
        return False
    features = _binding().get_host_cpu_features()
    return all(features.get(name) for name in REQUIRED)


def missing() -> str:
    """Reason why this host has no machine code, with the remedy."""
    if not is_installed():
        return "llvmlite is not installed: pip install llvmlite"
    return f"the CPU lacks {' or '.join(REQUIRED)}"


def build(text: str) -> bytes:
    """Build the object file of a module of LLVM IR for this host.

    Raises: RuntimeError if the text is not a valid module
    """
    binding, machine = _target()
    module = binding.parse_assembly(host_text(text))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    for name in LEFT_OUT:
        setattr(options, name, False)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    image: bytes = machine.emit_object(module)
    return image


def split(text: str) -> dict[str, str]:
    """Return a module for each function of a module, except internal ones.

    Each has the internal functions, declarations and constants that it uses, and no comments. Other
    functions do not call each other.
    """
    functions = {_NAME.findall(each)[0]: each for each in _FUNCTION.findall(text)}
    internal = {own: each for own, each in functions.items() if each.startswith(_INTERNAL)}
    shared = {**{name: line for line, name in _GLOBAL.findall(text)}, **internal}
    texts, found = {**shared, **functions}, {}
    for own in (each for each in functions if each not in internal):
        used: set[str] = set()
        new = {own}
        while new:
            used |= new
            named = {each for name in new for each in _NAME.findall(texts[name])}
            new = (named & shared.keys()) - used
        parts = [functions[own], *(shared[name] for name in sorted(used - {own}))]
        found[own] = "\n".join([*parts, ""])
    return found


def _target() -> tuple[Any, Any]:
    """Return llvmlite's binding and a new target machine; an engine takes ownership of its
    machine.
    """
    binding = _binding()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=_features(binding),
        opt=SPEED_LEVEL,
        reloc="pic",
        jit=True,
    )
    return binding, machine


@cache
def _features(binding: Any) -> str:
    features: str = binding.get_host_cpu_features().flatten()
    return features


@cache
def _binding() -> Any:
    # Slow import (half the time of NumPy), only needed with machine code.
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding
