"""Internal functions of LLVM IR that have another body on CPUs with certain instructions.

Texts of kernels contain the portable body, so they can be built on any CPU. Both bodies give the
same bits.
"""

#: x * 2 ** n of float lanes, for whole n. biased: n + 254 in the low 22 bits; n: the same as float.
#: 2 ** n is a product of two powers: n from -150 to 128 exceeds the range of an exponent. Each half
#: of `biased` includes the exponent's bias; higher bits are shifted out. Only the last product
#: rounds, as the instruction does.
TIMES_POWER = "times_power_of_2"
_HEAD = (
    f"define internal <16 x float> @{TIMES_POWER}"
    "(<16 x float> %x, <16 x i32> %biased, <16 x float> %n) alwaysinline nounwind {"
)
PORTABLE = {
    TIMES_POWER: f"""\
{_HEAD}
  %half = lshr <16 x i32> %biased, splat (i32 1)
  %rest = sub <16 x i32> %biased, %half
  %half.bits = shl <16 x i32> %half, splat (i32 23)
  %rest.bits = shl <16 x i32> %rest, splat (i32 23)
  %first = bitcast <16 x i32> %half.bits to <16 x float>
  %second = bitcast <16 x i32> %rest.bits to <16 x float>
  %scaled = fmul <16 x float> %x, %first
  %found = fmul <16 x float> %scaled, %second
  ret <16 x float> %found
}}"""
}
_SCALE = "<16 x float> @llvm.x86.avx512.mask.scalef.ps.512"
#: By the name of a function: a feature of the CPU, and the body for CPUs that have it. The last
#: operands of the instruction select all lanes and the current rounding.
_SPECIFIC = {
    TIMES_POWER: (
        "+avx512f",
        f"""\
declare {_SCALE}(<16 x float>, <16 x float>, <16 x float>, i16, i32)
{_HEAD}
  %found = call {_SCALE}(<16 x float> %x, <16 x float> %n, <16 x float> %x, i16 -1, i32 4)
  ret <16 x float> %found
}}""",
    )
}


def for_host(text: str, features: str) -> str:
    """Return a module with the bodies for a CPU. features: of LLVM, such as `+avx512f`."""
    for name, (feature, specific) in _SPECIFIC.items():
        if feature in features.replace(",", " ").split():
            text = text.replace(PORTABLE[name], specific)
    return text
