"""The parts of Score and Embed: batches of whole texts."""
