"""Functions of program.py for kernels: each once, in NumPy and, if possible, in LLVM IR."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter

from msgspec import structs

from csrun.base.half_formats import HalfFormat
from csrun.compiler.emit.kernel_lines import LinesFunction
from csrun.compiler.emit.llvm.library import BUILDERS, library_code
from csrun.compiler.emit.llvm.module import (
    KernelCode,
    SharedCode,
    common_text,
    kernel_code,
    module_text,
)
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Phase
from csrun.compiler.graph.kernel import CHECKS, Kernel, Name
from csrun.compiler.kernels.products import AddedProduct, Product
from csrun.compiler.lair.dialect import print_kernels
from csrun.compiler.lair.kernel_function import KernelFunction, ProgramFunction, short_hash
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.loop_kernel import LoopKernel
from csrun.executable import machine_code
from csrun.executable.bfloat16 import TILES, Products, instructions_of
from csrun.executable.kernel_code import KernelFiles
from csrun.executable.kernel_signature import KernelArray, KernelSignature, ProductSignature
from csrun.executable.products import tile_of

SHARED = "kernel"  # common name under which code texts are compared
MOST_CODES = 1024  # functions whose machine code this process keeps for its next programs


@dataclass(frozen=True)
class _FunctionForm:
    """A function, the label of one of its kernels, and its machine code.

    source: text of the comment in the code.
    rows: number of rows of a loop; None for any number.
    product: matrix product, if it is one; products share their code.
    """

    function: ProgramFunction
    label: str
    source: Callable[[], str]
    code: Callable[[str], KernelCode | None]
    rows: int | None = None
    product: Product | None = None


_codes: dict[str, tuple[KernelCode, KernelSignature] | None] = {}  # by the computation's text


class KernelFunctions:
    """Functions of a program, by name; a kernel without one is emitted inline."""

    def __init__(self, kernels: Iterable[Kernel], updates: Iterable[KernelLoop] = ()) -> None:
        self._of: dict[int, _FunctionForm] = {}
        self._forms: dict[str, _FunctionForm] = {}
        self._flops: Counter[str] = Counter()
        for kernel in kernels:
            name = ""
            if isinstance(kernel, LoopKernel):  # kernels whose inline lines call its function
                name = self._add(_form_of_loop(kernel.loop)).function.name
            elif (form := _form_of(kernel)) is not None:
                self._of[id(kernel)] = self._add(form)
                name = form.function.name
            self._flops[name] += kernel.flops
        for loop in updates:
            self._add(_form_of_loop(loop))

    def __len__(self) -> int:
        return len(self._forms)

    def lines(self) -> list[str]:
        """Return the text of the functions."""
        return [line for each in self._forms.values() for line in (*each.function.lines(), "", "")]

    def prepare(self, kernel: Kernel, name: Name) -> list[str]:
        """Return the lines that bind a kernel's arrays."""
        form = self._of.get(id(kernel))
        own = kernel.prepare(name) if form is None else form.function.prepare(form.label, name)
        return [CHECKS, *own] if kernel.check(name) else own

    def emit(self, kernel: Kernel, name: Name) -> list[str]:
        """Return the lines of a kernel in a visit."""
        form = self._of.get(id(kernel))
        own = kernel.emit(name) if form is None else form.function.emit(form.label, name)
        return [*kernel.check(name), *own]

    def kernel_files(
        self, products: Products = "own", describes: bool = True
    ) -> KernelFiles | None:
        """The machine code of those that have such a form; None where none has.

        products: kind of the program's products, as in its plan; those of BLAS have no machine
            code.
        describes: the source of each function is a comment.
        """
        codes: dict[str, SharedCode] = {}  # by the text of the code
        signatures = {}
        of_products = {
            name: _product_signature(form.function, form.product, products)
            for name, form in self._forms.items()
            if form.product is not None and products != "blas"
        }
        for name, form in self._forms.items():
            found = None if form.product is not None else _code_of(form)
            if found is None:
                continue
            code, signature = found
            if code.text not in codes:
                named = _named_by_content(code, name.rpartition("_")[0])
                codes[code.text] = SharedCode(named, form.source() if describes else "", [])
            shared = codes[code.text]
            shared.functions.append(name)
            signatures[name] = structs.replace(signature, function=shared.code.name)
        if not signatures and not of_products:
            return None
        assert len({each.code.name for each in codes.values()}) == len(codes), (
            "two codes have one name"
        )
        tile = tile_of(machine_code.host())
        has_pairs = any(each.in_pairs for each in of_products.values())
        instructions = instructions_of(products) if has_pairs else None
        pairs = None if instructions is None else TILES[instructions]
        common = common_text(tile, self._format_of_words, pairs)
        return KernelFiles.build(
            (common, module_text(codes.values())), signatures, of_products, instructions
        )

    @property
    def _format_of_words(self) -> HalfFormat | None:
        """Return the 16-bit format of operands that matrix products read as words, if any."""
        products = (form.product for form in self._forms.values() if form.product is not None)
        return next((product.half for product in products if product.half is not None), None)

    def share_of(self, functions: Iterable[str]) -> float:
        """The share of the program's FLOPs that functions of these names compute."""
        flops = sum(self._flops[name] for name in functions)
        return flops / max(self._flops.total(), 1)

    def _add(self, form: _FunctionForm) -> _FunctionForm:
        first = self._forms.setdefault(form.function.name, form)
        assert first.function.computed == form.function.computed, "two kernels have one name"
        return form


def _code_of(form: _FunctionForm) -> tuple[KernelCode, KernelSignature] | None:
    """Return the machine code and the signature of a function; None if it has no such form.

    The next programs of this process reuse them: programs of other shapes have many kernels in
    common.
    """
    key = f"{form.function.name} {form.function.computed}"
    if key not in _codes:
        if len(_codes) >= MOST_CODES:
            del _codes[next(iter(_codes))]
        code = form.code(SHARED)
        _codes[key] = None if code is None else (code, _signature(form, code, SHARED))
    return _codes[key]


def _form_of(kernel: Kernel) -> _FunctionForm | None:
    is_product = _is_product(kernel)
    if not is_product and type(kernel) not in BUILDERS:
        return None
    stem = f"{kernel.kind}{'_backward' if kernel.phase is Phase.BACKWARD else ''}"
    if isinstance(kernel, Product):
        stem = "half_product" if kernel.are_halves else "product"
    function = LinesFunction.of(stem, kernel)
    if function is None:
        return None
    return _FunctionForm(
        function,
        kernel.writes[0].name,
        lambda: f"{kernel.kind} of {kernel.layer}",
        lambda name: library_code(kernel, name),
        product=kernel if isinstance(kernel, Product) else None,
    )


def _form_of_loop(loop: KernelLoop) -> _FunctionForm:
    return _FunctionForm(
        loop.function,
        loop.name,
        lambda: print_kernels([loop.op]),
        lambda name: kernel_code(loop.op, loop.writes, name),
        None if loop.function.is_flat else max(loop.rows, 1),
    )


def _is_product(kernel: Kernel) -> bool:
    """Return whether a kernel is a plain matrix product, without a copy before it."""
    if isinstance(kernel, AddedProduct):
        return kernel.before == kernel.out
    return isinstance(kernel, Product)


def _named_by_content(code: KernelCode, stem: str) -> KernelCode:
    """Return code named by its content, so that programs with equal code share its object."""
    name = f"{stem}_{short_hash(code.text)}"
    return replace(code, name=name, text=code.text.replace(f"@{SHARED}", f"@{name}"))


def _signature(form: _FunctionForm, code: KernelCode, name: str) -> KernelSignature:
    """Return the signature of a function, with the name of its machine code."""
    function = form.function
    is_loop = isinstance(function, KernelFunction)
    return KernelSignature(
        name,
        tuple(_array(function, array) for array in code.parameters),
        form.rows if is_loop else code.rows,
        len(function.inputs),
        len(code.numbers),
        () if is_loop else code.numbers,
        len(code.constants),
        code.scratch_bytes,
        code.parts_bytes,
        code.cut,
        code.has_epilogue,
        code.begin_rows,
    )


def _product_signature(
    function: ProgramFunction, product: Product, products: Products
) -> ProductSignature:
    a, b, out = (_array(function, array) for array in (product.a, product.b, product.out))
    in_pairs = product.are_halves and instructions_of(products) is not None
    return ProductSignature(a, b, out, product.adds, in_pairs)


def _array(function: ProgramFunction, array: Array) -> KernelArray:
    if array not in function.arrays:  # but the same code for another shape
        is_same = attrgetter("name", "offset", "dtype")
        array = next(own for own in function.arrays if is_same(own) == is_same(array))
    is_input = array in function.inputs
    place = (function.inputs if is_input else function.parameters).index(array)
    layout = () if function.is_flat else (array.shape, array.strides)
    return KernelArray(place, is_input, array.dtype, *layout)
