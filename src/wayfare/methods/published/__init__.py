"""Methods of others, each in one file: what they change of Algorithm 1, and nothing else."""
