"""Films of an agent at play: GIF and MP4 for `play`, short clips for TensorBoard while a run goes on.
Takes policies from checkpoints and frames from envs; gives files."""
