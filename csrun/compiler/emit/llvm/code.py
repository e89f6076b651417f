"""Writer of LLVM IR text: instructions of a function, over vectors of 16 lanes or single numbers.

LLVM must not change how a value is computed: no instruction has a fast-math flag, and the number of
lanes does not depend on the host's registers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from csrun.compiler.emit.llvm.lane_values import (
    INDEX,
    LANES,
    FirstLanes,
    Kind,
    LaneValue,
    index,
    stored_size,
)
from csrun.compiler.emit.llvm.literals import literal


class Code:
    """Instructions, in order. Loop counters and sums are in slots, which LLVM promotes to
    registers.

    declared: declarations of the intrinsics and definitions of the internal functions it calls.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.declared: dict[str, str] = {}
        self._count = 0
        self._selected: set[str] = set()

    def new_name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def make(self, kind: Kind, text: str) -> LaneValue:
        """Return a variable with the result of an instruction."""
        name = self.new_name("%v")
        self.lines.append(f"  {name} = {text}")
        return LaneValue(name, kind)

    def comment(self, text: str) -> None:
        self.lines.append(f"  ; {text}")

    # Numbers.

    def constant(self, number: float, kind: Kind) -> LaneValue:
        """Return a number, in all lanes."""
        text = literal(number, kind.dtype)
        if kind.lanes > 1:
            text = f"splat ({kind.element} {text})"
        return LaneValue(text, kind)

    def splat(self, value: LaneValue, lanes: int) -> LaneValue:
        """Broadcast a number to all lanes."""
        if lanes == value.kind.lanes:
            return value
        kind = Kind(value.kind.dtype, lanes)
        first = self.make(kind, f"insertelement {kind.ir} poison, {value}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.make(kind, f"shufflevector {first}, {kind.ir} poison, {zeros}")

    def lane_numbers(self, dtype: str = "int64") -> LaneValue:
        """Return 0, 1 ... in the lanes."""
        kind = Kind(dtype, LANES)
        numbers = ", ".join(f"{kind.element} {n}" for n in range(LANES))
        return LaneValue(f"<{numbers}>", kind)

    def first_lanes(self, count: int, lanes: int = LANES) -> FirstLanes:
        """Return the mask of the first `count` lanes."""
        kind = Kind("bool", lanes)
        bits = ", ".join(f"{kind.element} {int(n < count)}" for n in range(lanes))
        return FirstLanes(f"<{bits}>", kind, count)

    def mask(self, count: LaneValue, lanes: int = LANES) -> LaneValue:
        """The mask of the first lanes; their number is known when the code runs."""
        kind = Kind("int32", lanes)
        numbers = ", ".join(f"{kind.element} {n}" for n in range(lanes))
        count = self.splat(self.convert("trunc", count, "int32"), lanes)
        return self.compare("slt", LaneValue(f"<{numbers}>", kind), count)

    def shuffle(self, x: LaneValue, y: LaneValue, places: Sequence[int]) -> LaneValue:
        """Return lanes of x and y concatenated, by index."""
        numbers = ", ".join(f"i32 {n}" for n in places)
        kind = Kind(x.kind.dtype, len(places))
        return self.make(kind, f"shufflevector {x}, {y}, <{len(places)} x i32> <{numbers}>")

    def op(self, name: str, x: LaneValue, y: LaneValue) -> LaneValue:
        """Emit an instruction with two operands of one type."""
        return self.make(x.kind, f"{name} {x}, {y.text}")

    def compare(self, how: str, x: LaneValue, y: LaneValue) -> LaneValue:
        """Emit a comparison; `how` is a predicate of fcmp or icmp."""
        name = "fcmp" if x.kind.is_float else "icmp"
        return self.make(x.kind.of("bool"), f"{name} {how} {x}, {y.text}")

    def any_lane(self, mask: LaneValue) -> LaneValue:
        """Return whether a mask is true in any lane."""
        if mask.kind.lanes == 1:
            return mask
        return self.call_typed(f"llvm.vector.reduce.or.{mask.kind.suffix}", Kind("bool"), [mask])

    def select(self, condition: LaneValue, x: LaneValue, y: LaneValue) -> LaneValue:
        found = self.make(x.kind, f"select {condition}, {x}, {y}")
        self._selected.add(found.text)
        return found

    def convert(self, how: str, x: LaneValue, dtype: str) -> LaneValue:
        """Emit a conversion instruction, such as sitofp."""
        kind = x.kind.of(dtype)
        return self.make(kind, f"{how} {x} to {kind.ir}")

    def call(self, intrinsic: str, *args: LaneValue) -> LaneValue:
        """Call an intrinsic of one type."""
        kind = args[0].kind
        return self.call_typed(f"llvm.{intrinsic}.{kind.suffix}", kind, args)

    def call_typed(self, name: str, kind: Kind, args: Sequence[LaneValue]) -> LaneValue:
        types = ", ".join(arg.kind.ir for arg in args)
        return self.call_internal(name, f"declare {kind.ir} @{name}({types})", kind, args)

    def call_internal(
        self, name: str, text: str, kind: Kind, args: Sequence[LaneValue]
    ) -> LaneValue:
        """Call a function, whose definition or declaration is added to the module."""
        self.declared[name] = text
        return self.make(kind, f"call {kind.ir} @{name}({', '.join(map(str, args))})")

    def effect(self, name: str, types: str, *operands: LaneValue | str) -> None:
        """Call an intrinsic without a result.

        types: those of its declaration; operands that are text begin with their type.
        """
        self._declare(name, f"void @{name}({types})")
        self.lines.append(f"  call void @{name}({', '.join(map(str, operands))})")

    # Memory.

    def offset(self, pointer: str, dtype: str, elements: LaneValue) -> str:
        """Return the address of an element."""
        if elements.text == "0":
            return pointer
        stored = _stored(dtype)
        return self.make(INDEX, f"getelementptr {stored}, ptr {pointer}, {elements}").text

    def load(self, pointer: str, kind: Kind, mask: LaneValue | None = None) -> LaneValue:
        """Load consecutive elements; 0 where the mask is false."""
        stored = kind.of("int8") if kind.dtype == "bool" else kind
        align = stored_size(kind.dtype)
        if mask is None:
            found = self.make(stored, f"load {stored.ir}, ptr {pointer}, align {align}")
        elif isinstance(mask, FirstLanes):
            found = self._load_first(pointer, stored, mask.count)
        else:
            name = f"llvm.masked.load.{stored.suffix}.p0"
            self._declare(name, f"{stored.ir} @{name}(ptr, i32, {mask.kind.ir}, {stored.ir})")
            operands = f"ptr {pointer}, i32 {align}, {mask}, {stored.ir} zeroinitializer"
            found = self.make(stored, f"call {stored.ir} @{name}({operands})")
        return self._loaded(found, kind)

    def _load_first(self, pointer: str, kind: Kind, count: int) -> LaneValue:
        """Load lanes in the pieces in which they are stored: a CPU forwards no store to a load that
        is longer.
        """
        found, lanes = self.constant(0, kind), range(kind.lanes)
        for first, size in _pieces(count):
            own = self.load(self.offset(pointer, kind.dtype, index(first)), Kind(kind.dtype, size))
            if size == 1:
                found = self.make(kind, f"insertelement {found}, {own}, i64 {first}")
            else:
                wide = self.shuffle(own, own, [(n - first) % size for n in lanes])
                is_own = range(first, first + size)
                found = self.shuffle(found, wide, [n + (n in is_own) * kind.lanes for n in lanes])
        return found

    def prefetch(self, pointer: str, writes: bool = False) -> None:
        """Prefetch a cache line, if the address may be accessed: for writing to the L1 cache.

        For reading it goes to the L2 cache, where it does not evict data in use.
        """
        name = "llvm.prefetch.p0"
        self._declare(name, f"void @{name}(ptr, i32, i32, i32)")
        kind = f"i32 {int(writes)}, i32 {3 if writes else 2}"
        self.lines.append(f"  call void @{name}(ptr {pointer}, {kind}, i32 1)")

    def gather(self, pointer: str, kind: Kind, stride: int, mask: LaneValue | None) -> LaneValue:
        """Load elements that are not consecutive."""
        return self._gathered(self._addresses(pointer, kind, stride), kind, mask)

    def _gathered(self, addresses: str, kind: Kind, mask: LaneValue | None) -> LaneValue:
        stored = kind.of("int8") if kind.dtype == "bool" else kind
        mask = mask or self.constant(1, kind.of("bool"))
        name = f"llvm.masked.gather.{stored.suffix}.v{LANES}p0"
        self._declare(
            name, f"{stored.ir} @{name}(<{LANES} x ptr>, i32, {mask.kind.ir}, {stored.ir})"
        )
        align = stored_size(kind.dtype)
        operands = f"{addresses}, i32 {align}, {mask}, {stored.ir} zeroinitializer"
        return self._loaded(self.make(stored, f"call {stored.ir} @{name}({operands})"), kind)

    def gather_at(
        self, pointer: str, kind: Kind, places: LaneValue, mask: LaneValue | None = None
    ) -> LaneValue:
        """The elements at these places, one in each lane; where the mask is false 0."""
        stored = _stored(kind.dtype)
        found = self.make(INDEX, f"getelementptr {stored}, ptr {pointer}, {places}").text
        if kind.lanes == 1:
            return self.load(found, kind)
        return self._gathered(f"<{kind.lanes} x ptr> {found}", kind, mask)

    def store(self, value: LaneValue, pointer: str, mask: LaneValue | None = None) -> None:
        """Store consecutive elements, where the mask is true."""
        value = self._stored_value(value)
        align = stored_size(value.kind.dtype)
        if value.text in self._selected:
            # LLVM would make a masked store, if one of both is what is there.
            value = self.make(value.kind, f"freeze {value}")
        if mask is None:
            self.lines.append(f"  store {value}, ptr {pointer}, align {align}")
            return
        if isinstance(mask, FirstLanes):
            self._store_first(value, pointer, mask.count)
            return
        name = f"llvm.masked.store.{value.kind.suffix}.p0"
        self._declare(name, f"void @{name}({value.kind.ir}, ptr, i32, {mask.kind.ir})")
        self.lines.append(f"  call void @{name}({value}, ptr {pointer}, i32 {align}, {mask})")

    def _store_first(self, value: LaneValue, pointer: str, count: int) -> None:
        """Store lanes in pieces of 2 ** n: a masked store takes ten times as long on some CPUs."""
        for first, size in _pieces(count):
            kind = Kind(value.kind.dtype, size)
            own = self.shuffle(value, value, range(first, first + size)).text
            place = self.offset(pointer, kind.dtype, index(first))
            kept = f"<{size} x {kind.element}> {own}"
            self.lines.append(f"  store {kept}, ptr {place}, align {stored_size(kind.dtype)}")

    def scatter(self, value: LaneValue, pointer: str, stride: int, mask: LaneValue | None) -> None:
        """Store elements that are not consecutive."""
        value = self._stored_value(value)
        addresses = self._addresses(pointer, value.kind, stride)
        mask = mask or self.constant(1, Kind("bool", LANES))
        name = f"llvm.masked.scatter.{value.kind.suffix}.v{LANES}p0"
        self._declare(name, f"void @{name}({value.kind.ir}, <{LANES} x ptr>, i32, {mask.kind.ir})")
        align = stored_size(value.kind.dtype)
        self.lines.append(f"  call void @{name}({value}, {addresses}, i32 {align}, {mask})")

    def _addresses(self, pointer: str, kind: Kind, stride: int) -> str:
        """Return the address of one element per lane."""
        numbers = ", ".join(f"i64 {n * stride}" for n in range(LANES))
        stored = _stored(kind.dtype)
        found = self.make(
            INDEX, f"getelementptr {stored}, ptr {pointer}, <{LANES} x i64> <{numbers}>"
        )
        return f"<{LANES} x ptr> {found.text}"

    def _declare(self, name: str, text: str) -> None:
        self.declared[name] = f"declare {text}"

    def _loaded(self, found: LaneValue, kind: Kind) -> LaneValue:
        if kind.dtype != "bool":
            return found
        return self.compare("ne", found, self.constant(0, found.kind))

    def _stored_value(self, value: LaneValue) -> LaneValue:
        return self.convert("zext", value, "int8") if value.kind.dtype == "bool" else value

    # Control flow.

    def slot(self, first: LaneValue) -> str:
        """Return a mutable variable."""
        name = self.new_name("%slot")
        self.entry.append(f"  {name} = alloca {first.kind.ir}")
        self.set(name, first)
        return name

    def set(self, slot: str, value: LaneValue) -> None:
        self.lines.append(f"  store {value}, ptr {slot}")

    def get(self, slot: str, kind: Kind) -> LaneValue:
        return self.make(kind, f"load {kind.ir}, ptr {slot}")

    @contextmanager
    def loop(
        self, first: LaneValue, last: LaneValue, step: int | LaneValue = 1
    ) -> Iterator[LaneValue]:
        """Loop over numbers from `first` on, in steps of `step`, below `last`."""
        head, body, end = (self.new_name(stem) for stem in ("head", "body", "end"))
        counter = self.slot(first)
        self._branch(head)
        self._label(head)
        number = self.get(counter, INDEX)
        goes_on = self.compare("slt", number, last)
        self.lines.append(f"  br {goes_on}, label %{body}, label %{end}")
        self._label(body)
        yield number
        by = index(step) if isinstance(step, int) else step
        self.set(counter, self.op("add", number, by))
        self._branch(head)
        self._label(end)

    @contextmanager
    def when(self, condition: LaneValue) -> Iterator[None]:
        """Context manager of instructions that run if a condition holds."""
        then, end = self.new_name("then"), self.new_name("end")
        self.lines.append(f"  br {condition}, label %{then}, label %{end}")
        self._label(then)
        yield
        self._branch(end)
        self._label(end)

    def _branch(self, label: str) -> None:
        self.lines.append(f"  br label %{label}")

    def _label(self, label: str) -> None:
        self.lines.append(f"{label}:")


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Yield the first lane and the size, a power of 2, of each piece of a number of lanes."""
    first = 0
    while first < count:
        size = 1 << ((count - first).bit_length() - 1)
        yield first, size
        first += size


def _stored(dtype: str) -> str:
    return "i8" if dtype == "bool" else Kind(dtype).element
