"""FLGo: federated averaging, clients one after another in one process."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import flgo
import flgo.algorithm.fedavg as fedavg
import flgo.benchmark.partition as partitions
import flgo.benchmark.toolkits.cv.classification as toolkit
import job


def main() -> None:
    clock = job.Clock()
    # Recent PyTorch needs this method, which FLGo 0.4.4 does not have.
    toolkit.FromDatasetPipe.TaskDataset.__getitems__ = lambda subset, places: [subset[place] for place in places]
    recipe = Path(__file__).with_name("flgo_benchmark.py")
    with tempfile.TemporaryDirectory() as folder:
        # FLGo imports its generated benchmark from the working folder.
        os.chdir(folder)
        sys.path.insert(0, folder)
        benchmark = importlib.import_module(flgo.gen_benchmark_from_file("small", str(recipe)))
        # FLGo's picture of the partition takes minutes if labels are tensors.
        vars(benchmark)["visualize"] = lambda *arguments: None
        flgo.gen_task_by_(benchmark, partitions.IIDPartitioner(num_clients=job.DEVICES), "task")
        runner = flgo.init(
            "task",
            fedavg,
            {
                "num_rounds": job.WARM_ROUNDS + job.rounds(),
                "num_steps": job.STEPS,
                "batch_size": job.BATCH,
                "learning_rate": job.LEARNING_RATE,
                "learning_rate_decay": 1.0,
                "proportion": 1.0,
                "sample": "full",
                "train_holdout": 0.0,
                "eval_interval": -1,
                "no_log_console": True,
                "no_tqdm": True,
            },
        )

        def ended(server: Any) -> bool:
            """Called before every round."""
            clock.after_round(server.current_round - 1)
            return bool(server.current_round > server.num_rounds)

        runner.register_exit_condition(ended)
        runner.run()
        clock.write(job.accuracy(runner.model))


if __name__ == "__main__":
    main()
