"""How a training's data is split among its streamers, as far as a checkpoint depends on it."""

from dataclasses import dataclass

from csrun.base.errors import UsageError
from csrun.data import Dataset
from csrun.data.sharding import Sharding, shard_info
from csrun.estimator.layout import Layout
from csrun.estimator.place import Target
from csrun.records.checkpoints import Checkpoint

REMEDY = {
    Sharding.FILE: "leave shard_files out of input_fn",
    Sharding.USER: "leave shard out of input_fn",
}


@dataclass(frozen=True)
class Streams:
    """Sharded by batch, what is trained does not depend on the number of streamers.

    Otherwise each has data of its own, at its own batch: step s of N streamers has consumed the
    first ceil((s - i) / N) batches of streamer i, and only N streamers can go on from there.
    """

    sharding: Sharding
    count: int

    @staticmethod
    def of(dataset: Dataset) -> "Streams":
        """Those of this run."""
        return Streams(dataset.sharding, shard_info()[1])

    @property
    def apart(self) -> bool:
        """Whether each streamer has data of its own."""
        return self.sharding is not Sharding.BATCH

    def identity(self) -> dict[str, str]:
        """What a checkpoint keeps of them."""
        kept = {"sharding": str(self.sharding)}
        return {**kept, "streamers": str(self.count)} if self.apart else kept

    def require_same(self, found: Checkpoint, target: Target) -> None:
        """See whether this run can go on with the data of the checkpoint's.

        Raises: UsageError when the data was, or is, split among another number of streamers
        """
        identity = found.manifest.identity
        sharding = Sharding(identity.get("sharding", Sharding.BATCH))
        then = Streams(sharding, int(identity.get("streamers", self.count)))
        if then == self:
            return
        raise UsageError(
            f"{found.path}: its run had its data {then._text()}, this one has it {self._text()}: "
            f"{then._remedy(self, target)}, or train in another --model_dir"
        )

    def _text(self) -> str:
        of = f" among {self.count} streamers" if self.apart else ""
        return f"sharded by {self.sharding}{of}"

    def _remedy(self, now: "Streams", target: Target) -> str:
        if self.sharding is not now.sharding:
            return f"let input_fn shard by {self.sharding} again"
        if target.context is None or target.site is None:
            return f"run it with csrun_wse and {self.count} streamers"
        layout = Layout.of(target.context.job, target.site.nodes)
        options = layout.options_for_exactly(self.count)
        return f"run it with {options}, or shard by batch from the start ({REMEDY[self.sharding]})"
