"""Running a job on a cluster: one srun, whose tasks are directed from here as on one machine.

csrun_wse (in front of a terminal, or in a batch job's script) starts srun; srun starts a node agent
for every task; the node agents report in, and from there on the job is the same `JobLoop` that runs
on one machine, over the mail of `csrun.launch.slurm.mailbox` instead of a fork server's socket.
"""
