"""Memory of a job's tasks besides the model and its data: Python, NumPy, csrun.

Source: proportional set sizes of jobs of two models, Linux x86-64, Python 3.11; of SwarmX assumed
"""

from csrun.context import Role

#: What all tasks of a job on one machine share, and what each task of a role has to itself.
SHARED_BYTES = 90_000_000
PRIVATE_BYTES = {
    Role.CHIEF: 55_000_000,
    Role.MEMORYX: 27_000_000,
    Role.SWARMX: 14_000_000,
    Role.WAFER: 28_000_000,
    Role.STREAMER: 14_000_000,
}
