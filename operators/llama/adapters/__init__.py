"""Files of LoRA adapters: read, checked against the base model, and written anew in the forms that the engine takes."""
