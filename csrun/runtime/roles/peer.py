"""How a role other than the chief takes part in a run."""

from collections.abc import Callable
from contextlib import closing

from csrun.base.errors import CsrunError
from csrun.context import Role
from csrun.context.job import peer_name
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import SAME_CALLS, RunFolder, join

MEMORYX = peer_name(Role.MEMORYX)


def streamer_name(rank: int) -> str:
    """The streamer of a rank."""
    return peer_name(Role.STREAMER, rank)


def wafer_name(system: str) -> str:
    """The wafer of a CS system."""
    return peer_name(Role.WAFER, system=system)


def take_part(folder: RunFolder, name: str, serve: Callable[[Channel], Results]) -> Results:
    """Join the run under `name`, serve until the chief says stop, and return the run's results.

    Raises: PeerLost when the chief goes away; whatever `serve` raises.
    """
    joined = join(folder, name)
    if not isinstance(joined, Channel):
        return joined
    with closing(joined):
        return serve(joined)


def learn(folder: RunFolder, name: str) -> Results:
    """The results of a run in which the chief needs no peers.

    Raises: PeerLost when the chief goes away or gives the run up; CsrunError when its run is
    another.
    """
    joined = join(folder, name)
    if isinstance(joined, Channel):
        joined.close()
        raise CsrunError(f"{name}: the chief is in another run: {SAME_CALLS}")
    return joined
