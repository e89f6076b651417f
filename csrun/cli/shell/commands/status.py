"""system show and status: what a system is, and how it is."""

import time

from csrun.cli.shell import reply
from csrun.cli.shell.shell import Shell, leaf
from csrun.launch import backend_of
from csrun.system.change import drainer
from csrun.system.lease import holder
from csrun.system.power import Power
from csrun.system.state_files import changing, load_state


@leaf("show")
def show(shell: Shell, output_format: str) -> None:
    """Show what the system is: its address, fabric, memory and links."""
    system = shell.system
    facts: reply.Record = {
        "system": system.name,
        "site": shell.site.name,
        "address": system.endpoint,
        "fabric": f"{system.fabric_width} x {system.fabric_height}",
        "usable_cores": system.usable_cores,
        "sram_bytes": system.sram_bytes,
        "clock_hz": int(system.clock_hz),
        "io_gbit_per_s": system.io_gbit_per_s,
        "boot_s": system.boot_s,
    }
    reply.show(facts, output_format)


@leaf("status")
def status(shell: Shell, output_format: str) -> None:
    """Show how the system is: its power state and mode, and who is on it."""
    state = load_state(shell.site, shell.system)
    with changing(shell.site, shell.system):
        drained_by = drainer(shell.site, shell.system)
    known = {status.name: status for status in backend_of(shell.site).systems()}
    facts: reply.Record = {
        "system": shell.system.name,
        "power": state.power,
        "mode": state.mode,
        "holder": holder(shell.site, shell.system),
        "waiting_jobs": len(known[shell.system.name].waiting),
        "drained_by": drained_by,
        "boot_left_s": state.boot_ends - time.time() if state.power is Power.BOOTING else None,
    }
    reply.show(facts, output_format)
