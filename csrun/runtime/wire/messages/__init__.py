"""Messages between the roles of a run: small typed structs, encoded as msgpack.

Bulk data are not part of messages: batches, weights and results are in shared memory, whose
descriptors accompany a message.
"""

from csrun.runtime.wire.messages.all_peers import (
    ReadTrace,
    Results,
    Stop,
    Traced,
    TraceRing,
)
from csrun.runtime.wire.messages.memoryx import (
    CheckpointSpace,
    InitializeStore,
    LoadStore,
    LoadUpdates,
    PauseUpdates,
    ReadState,
    StateWritten,
    StoreInitialized,
    StoreOnDisk,
    StoreReady,
    UpdatesPaused,
    UpdatesReady,
    WriteState,
)
from csrun.runtime.wire.messages.steps import (
    AccumulatedBatches,
    RunSteps,
    StepOrder,
    StepsDone,
    StreamerUse,
)
from csrun.runtime.wire.messages.streamer import (
    BeginPass,
    DataOrderPart,
    EndStreaming,
    Primed,
    RingReady,
    StartStreaming,
)
from csrun.runtime.wire.messages.swarmx import (
    JoinSwarmX,
    RelayReady,
    RelayWeights,
)
from csrun.runtime.wire.messages.wafer import (
    AddRing,
    BatchStall,
    LoadWafer,
    UnloadProgram,
    WaferReady,
    WeightsChanged,
    WeightStall,
)

AnyMessage = (
    StartStreaming
    | DataOrderPart
    | RingReady
    | Primed
    | BeginPass
    | LoadStore
    | StoreReady
    | LoadUpdates
    | UpdatesReady
    | RelayWeights
    | RelayReady
    | JoinSwarmX
    | PauseUpdates
    | UpdatesPaused
    | UnloadProgram
    | WeightsChanged
    | EndStreaming
    | InitializeStore
    | StoreInitialized
    | ReadState
    | WriteState
    | StateWritten
    | LoadWafer
    | AddRing
    | WaferReady
    | BatchStall
    | WeightStall
    | RunSteps
    | StepsDone
    | TraceRing
    | ReadTrace
    | Traced
    | Stop
)

__all__ = [
    "AccumulatedBatches",
    "AddRing",
    "AnyMessage",
    "BatchStall",
    "BeginPass",
    "CheckpointSpace",
    "DataOrderPart",
    "EndStreaming",
    "InitializeStore",
    "JoinSwarmX",
    "LoadStore",
    "LoadUpdates",
    "LoadWafer",
    "PauseUpdates",
    "Primed",
    "ReadState",
    "ReadTrace",
    "RelayReady",
    "RelayWeights",
    "Results",
    "RingReady",
    "RunSteps",
    "StartStreaming",
    "StateWritten",
    "StepOrder",
    "StepsDone",
    "Stop",
    "StoreInitialized",
    "StoreOnDisk",
    "StoreReady",
    "StreamerUse",
    "TraceRing",
    "Traced",
    "UnloadProgram",
    "UpdatesPaused",
    "UpdatesReady",
    "WaferReady",
    "WeightStall",
    "WeightsChanged",
    "WriteState",
]
