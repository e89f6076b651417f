"""Which CS system a run uses."""

from csrun.errors import CsrunError, UsageError
from csrun.mode import ExecutionMode
from csrun.site import Site, System
from csrun.system.state import Power, load_state

DEFAULT_PORT = 9000


def find(site: Site, cs_ip: str | None, mode: ExecutionMode) -> System:
    """The system that `cs_ip` names (host, host:port or name), or the first one that is ready.

    Raises: UsageError for an unknown system or one in another mode; CsrunError for one in STANDBY
    """
    if cs_ip is None:
        return _first_in_mode(site, mode)
    system = _by_address(site, cs_ip)
    require_ready(site, system, mode, f"cs_ip {cs_ip}: ")
    return system


def find_for_compile(site: Site, cs_ip: str | None, mode: ExecutionMode) -> System:
    """The system that `cs_ip` names, or the first in the mode, or else the first.

    Raises: UsageError for an unknown system
    """
    if cs_ip is not None:
        return _by_address(site, cs_ip)
    fitting = (system for system in site.systems if load_state(site, system).mode is mode)
    return next(fitting, site.systems[0])


def require_ready(site: Site, system: System, mode: ExecutionMode, where: str = "") -> None:
    """Make sure that a system is ACTIVE in `mode` at this moment; an error's text begins `where`.

    Raises: UsageError for a system in another mode; CsrunError for one in STANDBY
    """
    state = load_state(site, system)
    if state.mode is not mode:
        raise UsageError(
            f"{where}{system.name} is in {state.mode} mode, this run needs {mode}; "
            f"{_remedy(site, mode)}"
        )
    if state.power is not Power.ACTIVE:
        raise CsrunError(
            f"{where}{system.name} is in {state.power}; a job needs an {Power.ACTIVE} "
            "system: 'system activate' in its admin shell makes it one"
        )


def _first_in_mode(site: Site, mode: ExecutionMode) -> System:
    for system in site.systems:
        state = load_state(site, system)
        if state.mode is mode and state.power is Power.ACTIVE:
            return system
    raise CsrunError(
        f"site {site.name} has no {Power.ACTIVE} system in {mode} mode, it has: {_listing(site)}; "
        "'config execmode setup' in a system's admin shell changes its mode"
    )


def _by_address(site: Site, cs_ip: str) -> System:
    wanted = _with_port(cs_ip)
    for system in site.systems:
        if cs_ip == system.name or wanted == _with_port(system.address):
            return system
    raise UsageError(
        f"cs_ip {cs_ip}: site {site.name} has no such system, it has: {_listing(site)}"
    )


def _with_port(address: str) -> str:
    return address if ":" in address else f"{address}:{DEFAULT_PORT}"


def _remedy(site: Site, mode: ExecutionMode) -> str:
    fitting = [s.name for s in site.systems if load_state(site, s).mode is mode]
    if fitting:
        return f"use {' or '.join(fitting)}"
    return "'config execmode setup' in its admin shell changes its mode"


def _listing(site: Site) -> str:
    states = ((system, load_state(site, system)) for system in site.systems)
    return ", ".join(f"{s.name} ({s.address}, {state.mode}, {state.power})" for s, state in states)
