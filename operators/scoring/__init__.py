"""The parts of Score, Choose and Embed: batches of whole texts."""
