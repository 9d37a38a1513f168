"""The decoder contract, model loading, batch views and the fake decoder."""
