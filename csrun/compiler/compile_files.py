"""Files of a compile directory written by the last stages: plan, program, machine code, reports."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from csrun.compiler.emit.codegen import GeneratedProgram
from csrun.compiler.lair import Generated
from csrun.compiler.passes import Stage
from csrun.compiler.plan.store_layout import Layout
from csrun.compiler.report.contents import (
    HTML_FILE,
    GeneratedKernel,
    Report,
    arithmetic_text,
    render,
)
from csrun.compiler.report.text_report import TEXT_FILE, text_report
from csrun.executable import Plan, machine_code, manifest_of
from csrun.executable.bfloat16 import TITLES
from csrun.executable.executable import MANIFEST_FILE, PLAN_FILE, PROGRAM_FILE
from csrun.executable.kernel_code import KernelFiles
from csrun.site.site import System


@dataclass(frozen=True)
class CompiledProgram:
    """A program with its plan and layout; code: machine code of its kernels, if any."""

    layout: Layout
    plan: Plan
    program: GeneratedProgram
    code: KernelFiles | None

    @property
    def form_of_kernels(self) -> str:
        """Return a sentence on machine code: its share, or how to enable it."""
        if self.code is not None:
            manifest, how = self.code.manifest, ""
            if manifest.instructions is not None:
                how = (
                    f" {len(manifest.in_pairs)} of {len(manifest.products)} products in "
                    f"{TITLES[manifest.instructions]}, {self.plan.bfloat16_share:.0%} of the FLOPs."
                )
            return (
                f"Machine code: {len(self.code.functions)} of {len(self.program.kernels)} kernel "
                f"functions, {self.plan.machine_code_share:.0%} of the FLOPs.{how}"
            )
        if machine_code.is_supported() or not self.program.kernels:
            return ""
        return (
            f"Kernels run in NumPy, because {machine_code.missing()}. Machine code is up to "
            "several times as fast, and uses all CPUs."
        )


def compile_files(
    compiled: CompiledProgram,
    system: System,
    stages: tuple[Stage, ...] | None,
    generated: Sequence[Generated],
    arrays: Iterable[str],
) -> dict[str, str | bytes]:
    """Return the contents of the files, by name.

    stages: for the page; None: there is none.
    generated: kernels that are not from the library.
    arrays: names of additional NumPy files.
    """
    plan, program, code = compiled.plan, compiled.program, compiled.code
    kernels = _listing(compiled.layout)
    report = Report(
        plan,
        system,
        stages or (),
        kernels,
        program.text,
        tuple(GeneratedKernel(k.loop.name, k.layer, k.loop.operators) for k in generated),
    )
    files: dict[str, str | bytes] = {
        "kernels.txt": kernels,
        PROGRAM_FILE: program.text,
        PLAN_FILE: msgspec.json.format(msgspec.json.encode(plan), indent=1).decode(),
        TEXT_FILE: text_report(
            plan.estimate,
            plan.replicas,
            report.limit,
            plan.parameters,
            plan.systems,
            compiled.form_of_kernels,
            arithmetic_text(plan),
        ),
    }
    if stages is not None:
        files[HTML_FILE] = render(report)
    if code is not None:
        files |= code.files
    files[MANIFEST_FILE] = manifest_of(files, arrays, None if code is None else code.manifest)
    return files


def _listing(layout: Layout) -> str:
    """Return a list of the matched kernels, in program order."""
    lines = []
    for function in layout.functions:
        lines.append(function.visit.function)
        for kernel in function.kernels:
            reads = ", ".join(array.name for array in kernel.reads)
            writes = ", ".join(array.name for array in kernel.writes)
            lines.append(f"    {kernel.layer}: {kernel.kind}: {reads} -> {writes}")
    return "\n".join(lines) + "\n"
