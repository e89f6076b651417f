"""Memory of a job's tasks without the model and its data: Python, NumPy, csrun.

Source: proportional set sizes of jobs of two models, Linux x86-64, Python 3.11; SwarmX is estimated
"""

from csrun.context import Role

#: Memory shared by all tasks of a job on one machine, and memory of each task by role.
SHARED_BYTES = 90_000_000
PRIVATE_BYTES = {
    Role.CHIEF: 55_000_000,
    Role.MEMORYX: 27_000_000,
    Role.SWARMX: 14_000_000,
    Role.WAFER: 28_000_000,
    Role.STREAMER: 14_000_000,
}
