"""Films of a playing agent: GIF and MP4 for `play`, short clips for TensorBoard during training.
Takes policies from checkpoints and frames from envs; gives files."""
