"""Machine code of a program's kernels: built from LLVM IR, checked, loaded. llvmlite is used here.

Nothing is left to LLVM that could change a bit: the IR has vectors of a fixed length, whatever the
registers of the host, and no operator that may be computed in another way.
"""

from collections.abc import Callable, Iterable
from ctypes import CFUNCTYPE
from functools import cache
from importlib.util import find_spec
from typing import Any

REQUIRED = ("fma", "avx2")  # without them a fused multiply-add is a call of a library
SPEED_LEVEL = 2
LEFT_OUT = ("loop_vectorization", "slp_vectorization", "loop_unrolling")


class MachineCode:
    """Loaded functions of objects; they live as long as this does.

    An object may call functions of those before it, by the names of `exported`.
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
        """A function, by the types of its arguments."""
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
    """Return whether llvmlite is there."""
    return find_spec("llvmlite") is not None


@cache
def host() -> str:
    """The host's CPU and its instructions, which an object is for."""
    binding = _binding()
    return f"{binding.get_host_cpu_name()} {_features(binding)}"


def builder() -> str:
    """Inputs of a build beside the text: LLVM, its options, the host."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__} {SPEED_LEVEL} without {LEFT_OUT} {host()}"


@cache
def is_supported() -> bool:
    """Return whether machine code may run here: llvmlite is there, and the CPU has FMA and AVX2."""
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
    """The object of a module of LLVM IR, for this host.

    Raises: RuntimeError where the text is no module
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
    """llvmlite and a new target machine: an engine takes the one that it is made with."""
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
    # Imported where machine code is used: it takes as long as half of NumPy.
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding
