"""What is on disk: run folders, checkpoints, trained policies.
Takes tensors and results from runs; gives them to resume, evaluation and play. Files are never trusted when read."""
