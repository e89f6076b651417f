"""Selection of the CS systems of a run."""

import difflib
from collections.abc import Callable, Iterable, Sequence

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.site import Site, System, with_port
from csrun.system.lock import is_held
from csrun.system.power import Power, SystemState
from csrun.system.state_files import changing, lease_file, load_state, queue_of

Users = Callable[[Site, System], int]


def users_of(site: Site, system: System) -> int:
    """Return the number of jobs that hold a system or wait for it, by its lease."""
    with changing(site, system):
        held = is_held(lease_file(site, system))
    return held + len(queue_of(site, system).holders())


def find(
    site: Site,
    cs_ip: str | None,
    mode: ExecutionMode,
    source: str = "cs_ip",
    users: Users = users_of,
) -> System:
    """Return the system that `cs_ip` names (host, host:port or name), or a free one in the mode.

    If none is free it is the one with the fewest `users`. A system that boots into the mode is only
    selected if there is no other one. `source` describes where the name comes from.

    Raises: UsageError for an unknown system or one in another mode; CsrunError for one in STANDBY
    """
    if cs_ip is None:
        return _freest_in_mode(site, mode, users)
    system = _by_address(site, cs_ip)
    require_usable(site, system, load_state(site, system), mode, f"{source} {cs_ip}: ")
    return system


def choose_compatible(
    site: Site,
    first: System,
    count: int,
    mode: ExecutionMode,
    users: Users = users_of,
    given: Sequence[System] = (),
) -> tuple[System, ...]:
    """Return `count` systems that can share a run with `first`, with the fewest users.

    given: systems that a scheduler allocated to the job; others are not used.

    Raises: UsageError in pipelined mode, and if there are too few, with the reason for each other
    system
    """
    if not count:
        return ()
    if mode is not ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            f"num_csx must be 1 in {mode} mode, got {1 + count}: only weight streaming uses "
            "several CS systems; run the script with python-ws, or drop --num_csx"
        )
    others = [system for system in given or site.systems if system != first]
    fitting = compatible_systems(site, first, mode, others)
    if count > len(fitting):
        obstacles = ((system.name, _difference(site, system, first, mode)) for system in others)
        why = "; ".join(f"{name} {obstacle}" for name, obstacle in obstacles if obstacle)
        raise UsageError(
            f"num_csx must be at most {1 + len(fitting)}, got {1 + count}: "
            f"{'the job has' if given else f'site {site.name} has'} "
            f"{1 + len(others)} CS systems{': ' if why else ''}{why}"
        )
    return tuple(sorted(fitting, key=lambda system: users(site, system))[:count])


def compatible_systems(
    site: Site, first: System, mode: ExecutionMode, others: Iterable[System] | None = None
) -> list[System]:
    """Return the systems, of `others` or of all, that can share a run with `first`."""
    among = site.systems if others is None else others
    return [each for each in among if each != first and not _difference(site, each, first, mode)]


def _difference(site: Site, system: System, first: System, mode: ExecutionMode) -> str:
    """Return why a system cannot share a run with another one; empty if it can."""
    state = load_state(site, system)
    if state.mode is not mode:
        return f"is in {state.mode} mode"
    if state.power is Power.STANDBY:
        return f"is in {state.power}"
    return "" if system.is_like(first) else f"differs in geometry from {first.name}"


def find_for_compile(site: Site, cs_ip: str | None, mode: ExecutionMode) -> System:
    """Return the system that `cs_ip` names, or the first one in the mode, or else the first one.

    Raises: UsageError for an unknown system
    """
    if cs_ip is not None:
        return _by_address(site, cs_ip)
    fitting = (system for system in site.systems if load_state(site, system).mode is mode)
    return next(fitting, site.systems[0])


def named(site: Site, name: str) -> System:
    """Return the system of this name.

    Raises: UsageError for an unknown one
    """
    by_name = {system.name: system for system in site.systems}
    if name not in by_name:
        close = difflib.get_close_matches(name, by_name, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"system {name!r}: {meant}site {site.name} has {', '.join(by_name)}")
    return by_name[name]


def require_usable(
    site: Site, system: System, state: SystemState, mode: ExecutionMode, where: str = ""
) -> None:
    """Check that a system is in `mode`, and ACTIVE or booting; `where` begins the errors.

    Raises: UsageError for a system in another mode; CsrunError for one in STANDBY
    """
    if state.mode is not mode:
        raise UsageError(
            f"{where}{system.name} is in {state.mode} mode, this run needs {mode}; "
            f"{_remedy(site, mode)}"
        )
    if state.power is Power.STANDBY:
        raise CsrunError(  # not a usage error: it may have been put there while the job waited
            f"{where}{system.name} is in {state.power}; a job needs an {Power.ACTIVE} "
            "system: run 'system activate' in its admin shell"
        )


def systems_in_mode(site: Site, mode: ExecutionMode) -> list[System]:
    """Return the systems that are ready in a mode; if there are none, those that will be."""
    states = [(system, load_state(site, system)) for system in site.systems]
    for power in (Power.ACTIVE, Power.BOOTING):
        found = [s for s, state in states if state.mode is mode and state.power is power]
        if found:
            return found
    return []


def _freest_in_mode(site: Site, mode: ExecutionMode, users: Users) -> System:
    found = systems_in_mode(site, mode)
    if len(found) == 1:  # no query is needed
        return found[0]
    if found:
        return min(found, key=lambda system: users(site, system))  # of several the first
    raise UsageError(
        f"site {site.name} has no {Power.ACTIVE} system in {mode} mode, it has: {_listing(site)}; "
        "run 'config execmode setup' in a system's admin shell to change its mode"
    )


def _by_address(site: Site, cs_ip: str) -> System:
    for system in site.systems:
        if cs_ip == system.name or with_port(cs_ip) == system.endpoint:
            return system
    raise UsageError(f"cs_ip {cs_ip}: no such system on site {site.name}, known: {_listing(site)}")


def _remedy(site: Site, mode: ExecutionMode) -> str:
    fitting = [s.name for s in site.systems if load_state(site, s).mode is mode]
    if fitting:
        return f"use {' or '.join(fitting)}"
    return "run 'config execmode setup' in its admin shell to change its mode"


def _listing(site: Site) -> str:
    states = ((system, load_state(site, system)) for system in site.systems)
    return ", ".join(f"{s.name} ({s.address}, {state.mode}, {state.power})" for s, state in states)
