"""Instructions that LLVM selects for loads and stores."""

import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
import llvmlite.binding as llvm

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import Kind

FLOATS = Kind("float32", 16)


def test_a_selection_of_what_is_there_is_no_masked_store():
    # On AMD a masked store takes 18 micro-operations, a store 1.
    code = Code()
    x, slope = (code.load(pointer, FLOATS) for pointer in ("%x", "%slope"))
    zero = code.constant(0.0, FLOATS)
    code.store(code.select(code.compare("ole", x, zero), zero, slope), "%slope")
    assert "vmaskmov" not in assembly_of(code, "define void @f(ptr %x, ptr %slope)", "znver2")


def assembly_of(code: Code, head: str, cpu: str) -> str:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=cpu, opt=2, reloc="pic")
    text = "\n".join([f"{head} {{", "entry:", *code.entry, *code.lines, "  ret void", "}"])
    module = llvm.parse_assembly("\n".join([text, *code.declared.values()]) + "\n")
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_assembly(module)
