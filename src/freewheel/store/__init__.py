"""What is on disk: run folders, checkpoints, trained policies.
Takes tensors and figures from runs; gives them back to whoever resumes, evaluates or plays. Files are never trusted when read."""
