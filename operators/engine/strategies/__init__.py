"""How a sequence grows: token by token, or in diffused blocks."""
