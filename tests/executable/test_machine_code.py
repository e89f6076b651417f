"""Loading of object files and their archives."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")

from csrun.executable import machine_code
from csrun.executable.archive import archive

#: The first calls a function of the process, memset, by its object's offset table.
TEXT = """; f
define void @f(ptr %out) nounwind {
  %slot = alloca i64
  store volatile i64 16, ptr %slot
  %size = load volatile i64, ptr %slot
  call void @llvm.memset.p0.i64(ptr %out, i8 0, i64 %size, i1 false)
  store <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>, ptr %out, align 4
  ret void
}

; f's second part
define void @f.end(ptr %out) nounwind {
  %v = load float, ptr @table, align 4
  %r = call float @llvm.sqrt.f32(float %v)
  store float %r, ptr %out, align 4
  ret void
}

define void @g(ptr %out) nounwind {
  store <4 x float> <float 5.0, float 6.0, float 7.0, float 8.0>, ptr %out, align 4
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare float @llvm.sqrt.f32(float)
@table = private unnamed_addr constant [1 x float] [float 9.0], align 4
"""


def test_each_function_is_a_module_with_what_it_names():
    modules = machine_code.split(TEXT)
    assert [*modules] == ["f", "f.end", "g"]
    end = modules["f.end"].splitlines()
    assert end[0] == "define void @f.end(ptr %out) nounwind {"
    assert end[-2:] == TEXT.splitlines()[-2:]
    assert "declare" not in modules["g"]
    assert ";" not in "".join(modules.values())


def test_an_internal_function_is_in_the_modules_that_use_it():
    inner = "define internal void @twice(ptr %out) nounwind {\n  store i8 0, ptr @root\n}"
    outer = "define void @h(ptr %out) nounwind {\n  call void @twice(ptr %out)\n}"
    modules = machine_code.split(f"{outer}\n\n{inner}\n{TEXT}@root = x\n")
    assert [*modules] == ["h", "f", "f.end", "g"]
    assert modules["h"].count("define") == 2
    assert modules["h"].endswith(f"@root = x\n{inner}\n")
    assert "twice" not in modules["f"]


@pytest.mark.parametrize("is_split", [False, True])
def test_functions_of_an_archive_have_their_own_constants(is_split):
    image = machine_code.build(TEXT)
    if is_split:
        modules = machine_code.split(TEXT)
        image = archive({name: machine_code.build(text) for name, text in modules.items()})
    code = machine_code.MachineCode([image])
    found = np.zeros((3, 4), np.float32)
    for name, row in zip(("f", "f.end", "g"), found, strict=True):
        code.function(name, ctypes.c_void_p)(row.ctypes.data)
    np.testing.assert_array_equal(found, [[1, 2, 3, 4], [3, 0, 0, 0], [5, 6, 7, 8]])
    with pytest.raises(ValueError, match="no function h"):
        code.address("h")


def test_a_function_calls_the_exported_functions_of_the_object_before_it():
    def constant(number):
        return f"define float @constant() {{\n  ret float {number}\n}}\n"

    caller = """define void @f(ptr %out) {
  %v = call float @constant()
  store float %v, ptr %out, align 4
  ret void
}

declare float @constant()
"""
    called = archive({"f": machine_code.build(caller)})
    codes = [
        machine_code.MachineCode([machine_code.build(constant(number)), called], ["constant"])
        for number in ("2.0", "3.0")
    ]
    found = np.zeros(2, np.float32)
    for place, code in enumerate(codes):
        code.function("f", ctypes.c_void_p)(found[place:].ctypes.data)
    np.testing.assert_array_equal(found, [2, 3])
