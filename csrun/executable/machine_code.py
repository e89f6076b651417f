"""Machine code of a program's kernels: build from LLVM IR, verify, load. The only user of llvmlite.

Results must not depend on LLVM's choices: the IR has vectors of a fixed length for any host, and no
operation that LLVM may evaluate in more than one way.
"""

from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE
from functools import cache
from importlib.util import find_spec
from typing import Any

REQUIRED = ("fma", "avx2")  # without FMA instructions a fused multiply-add is a library call
SPEED_LEVEL = 2
LEFT_OUT = ("loop_vectorization", "slp_vectorization", "loop_unrolling")


class MachineCode:
    """Loaded functions of object files; they stay loaded as long as this object exists.

    An object file may call the `exported` functions of those before it.
    """

    def __init__(self, images: Iterable[bytes], exported: Iterable[str] = ()) -> None:
        self._engines: list[Any] = []
        for image in images:
            self._engines.append(_loaded(image))
            for name in exported:
                if address := self._engines[-1].get_function_address(name):
                    _binding().add_symbol(name, address)

    def address(self, name: str) -> int:
        """The address of a function."""
        found = (engine.get_function_address(name) for engine in self._engines)
        address: int = next((each for each in found if each), 0)
        if not address:
            raise ValueError(f"no function {name}")
        return address

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        """Return a function, given the types of its arguments."""
        return CFUNCTYPE(None, *arguments)(self.address(name))


def _loaded(image: bytes) -> Any:
    binding, machine = _target()
    module = binding.parse_assembly("")
    module.triple = machine.triple
    engine = binding.create_mcjit_compiler(module, machine)
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


def builder() -> str:
    """Return what a build depends on besides the text: LLVM, its options, the host."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__} {SPEED_LEVEL} without {LEFT_OUT} {host()}"


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
    module = binding.parse_assembly(text)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    for name in LEFT_OUT:
        setattr(options, name, False)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    image: bytes = machine.emit_object(module)
    return image


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
