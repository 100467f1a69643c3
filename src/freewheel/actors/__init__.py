"""Act in a world and write what happens as rows.
Takes observations from worlds and weights from the learners; gives actions to worlds and rows to memory."""
