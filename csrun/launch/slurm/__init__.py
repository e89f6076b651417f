"""Running a job on a Slurm cluster: one srun, controlled from this process.

csrun_wse (on a terminal, or in a batch job's script) starts srun, which starts a node agent on each
node. When all node agents have reported, the job runs in the same `JobLoop` as on one machine; the
mailboxes of `csrun.launch.slurm.mailbox` replace the fork server's socket.
"""
